"""Image tags and commits come from input, body, lock and data file, in this order, and as data."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.ci.workflow.sample import make

from parity.ci.workflow.references import (
    Reference,
    ask_remote,
    body_lines,
    check_image_tag,
    check_reference,
    find_references,
    pin,
    read_lock,
)
from parity.ci.workflow.settings import Dependency
from parity.errors import ConfigError

A, B = "a" * 40, "b" * 40


def dependency(url: str = "https://example.com/engine", default: str | None = None) -> Dependency:
    return Dependency("engine", url, "/opt/engine", "ci-engine", default, (), ())


def find(
    *, inputs: dict[str, str] | None = None, body: str = "", lock: dict[str, str] | None = None,
    default: str | None = None,
) -> dict[str, Reference]:  # fmt: skip
    return find_references(
        inputs=inputs or {},
        body=body,
        lock=lock or {},
        dependencies={"engine": dependency(default=default)},
        image_key="ci-image-tag",
        backend="rocm",
    )


def test_the_input_wins_then_the_body_then_the_lock_then_the_data_file() -> None:
    images = "ci-image-tag-rocm: from-body\r\nci-image-tag-cuda: other\r\n"
    body = f"Fixes it.\r\n\r\nci-engine: #12\r\n{images}"
    lock = {"engine": A, "image_tag": "locked"}
    inputs = {"ci-engine": "v1", "ci-image-tag": "typed"}
    assert find(inputs=inputs, body=body, lock=lock, default="main") == {
        "image_tag": Reference("typed", "input"),
        "engine": Reference("v1", "input"),
    }
    assert find(inputs={"ci-engine": " "}, body=body, lock=lock, default="main") == {
        "image_tag": Reference("from-body", "body"),
        "engine": Reference("refs/pull/12/head", "body"),
    }
    assert find(lock=lock, default="main") == {
        "image_tag": Reference("locked", "lock"),
        "engine": Reference(A, "lock"),
    }
    assert find(default="main") == {"engine": Reference("main", "ci.toml")}
    assert find() == {}


def test_a_line_inside_a_sentence_is_no_reference() -> None:
    assert find(body="see ci-engine: #12\n`ci-engine: #12`\n> ci-engine: #12\nci-engine:\n") == {}


def test_two_different_lines_are_refused_and_a_repeated_one_is_not() -> None:
    assert body_lines("ci-engine: a\nci-engine: a", ["ci-engine"]) == {"ci-engine": "a"}
    with pytest.raises(ConfigError, match="two lines ci-engine"):
        body_lines("ci-engine: a\nci-engine: b", ["ci-engine"])


HOSTILE = [
    "$(touch /tmp/x)",
    "`id`",
    "main; rm -rf /",
    "--upload-pack=evil",
    "-x",
    "a b",
    "../main",
    "a//b",
    ".hidden",
    "a/.b",
    "main\x00",
    "branch.lock",
    "HEAD^",
    "a:b",
    "@{u}",
    "#0",
    "#12a",
    "x" * 129,
    "refs/heads/*",
    "\u202emain",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_reference_is_refused_wherever_it_stands(text: str) -> None:
    with pytest.raises(ConfigError, match="has the reference"):
        check_reference(text, place="here")
    with pytest.raises(ConfigError, match="the line ci-engine"):
        find(body=f"ci-engine: {text}")


NO_TAGS = [*HOSTILE, "acme/image:tag", "registry.example/x", "a" * 129, "", "t\n"]
NO_TAGS.remove("branch.lock")  # no branch, but a harmless tag


@pytest.mark.parametrize("text", NO_TAGS)
def test_only_a_tag_is_an_image_tag(text: str) -> None:
    with pytest.raises(ConfigError, match="a tag only is allowed"):
        check_image_tag(text, place="here")


@given(st.text(max_size=60))
def test_an_accepted_reference_is_one_plain_word(text: str) -> None:
    try:
        found = check_reference(text, place="here")
    except ConfigError:
        return
    assert not found.startswith("-") and ".." not in found
    assert all(letter.isascii() and (letter.isalnum() or letter in "_./-") for letter in found)


def test_a_lock_names_commits_only(tmp_path: Path) -> None:
    config = make(tmp_path)
    path = tmp_path / "lock.toml"
    path.write_text(f'[references]\nengine = "{A}"\n[images]\nrocm = "v7"\n')
    assert read_lock(path, config, "rocm") == {"engine": A, "image_tag": "v7"}
    assert read_lock(path, config, "cuda") == {"engine": A}
    assert read_lock(None, config, "rocm") == {}
    for text, message in (
        ('[references]\nengine = "main"\n', r"lock.toml:2: .*a branch or tag can move"),
        ('[references]\nmotor = "x"\n', "isn't a dependency"),
        ('[images]\ntpu = "x"\n', "is no backend"),
        ('[images]\nrocm = "acme/x"\n', "a tag only is allowed"),
        ("[other]\n", "is unknown"),
        ("[references", "isn't valid TOML"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_lock(path, config, "rocm")
    with pytest.raises(ConfigError, match="there is no"):
        read_lock(tmp_path / "none.toml", config, "rocm")


@pytest.fixture
def remote(tmp_path: Path) -> tuple[Path, str]:
    place = tmp_path / "remote"
    place.mkdir()
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")

    def git(*words: str) -> str:
        command = ["git", *identity, *words]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "one")
    commit = git("rev-parse", "HEAD")
    git("tag", "-a", "v1", "-m", "annotated")
    git("update-ref", "refs/pull/12/head", commit)
    git("branch", "both")
    git("commit", "-q", "--allow-empty", "-m", "two")
    git("tag", "both")
    return place, commit


def test_branches_tags_and_pull_requests_become_the_commit_they_are_now(
    remote: tuple[Path, str],
) -> None:
    place, commit = remote
    url = str(place)
    assert ask_remote(url, "v1") == commit  # the commit, not the annotated tag's own object
    assert ask_remote(url, "refs/pull/12/head") == commit
    assert ask_remote(url, "main") != commit
    with pytest.raises(ConfigError, match="a branch and a tag 'both'"):
        ask_remote(url, "both")
    with pytest.raises(ConfigError, match="no reference 'none'"):
        ask_remote(url, "none")
    found = {"engine": Reference("v1", "body"), "image_tag": Reference("t", "input")}
    pinned = pin(found, {"engine": dependency(url)})
    assert pinned == {"engine": Reference(commit, "body (v1)"), "image_tag": found["image_tag"]}


def test_a_commit_is_pinned_without_asking_anyone() -> None:
    def refuse(url: str, reference: str) -> str:
        raise AssertionError("asked")

    found = {"engine": Reference(B, "lock")}
    assert pin(found, {"engine": dependency()}, remote=refuse) == found
