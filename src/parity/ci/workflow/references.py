"""Which image tag and which commits of dependencies a run uses, and who said so.

A reference is looked for in the inputs of a dispatched run, then in lines `key: value` of the pull
request's body, then in the lock file, then in `ci.toml`. The body is a stranger's text: it is
parsed here as data, every value must match a narrow pattern, and nothing of it reaches a shell.
"""

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from parity.ci.config import Config
from parity.ci.toml import Table
from parity.ci.workflow.settings import Dependency, read_dependencies, read_settings
from parity.errors import ConfigError, ParityError
from parity.registry import known

IMAGE = "image_tag"
IMAGE_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
COMMIT = re.compile(r"[0-9a-f]{40}")
PULL = re.compile(r"#([1-9][0-9]{0,8})")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}")
REMOTE_TIMEOUT_S = 60.0

Remote = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Reference:
    """One value and where it came from."""

    value: str
    source: str  # "input", "body", "lock" or "ci.toml"


def check_image_tag(text: str, *, place: str) -> str:
    """The tag; raises ConfigError for anything else, a full image name included."""
    if not IMAGE_TAG.fullmatch(text):
        raise ConfigError(
            f"{place} has the image tag {text[:200]!r}; a tag only is allowed"
            f" (^{IMAGE_TAG.pattern}$), never a name with a registry."
        )
    return text


def check_reference(text: str, *, place: str) -> str:
    """A reference that git can fetch: a commit, `#123` for a pull request, a branch or tag."""
    if COMMIT.fullmatch(text):
        return text
    if found := PULL.fullmatch(text):
        return f"refs/pull/{found[1]}/head"
    parts = text.split("/")
    is_plain = all(part and not part.startswith((".", "-")) for part in parts)
    if not NAME.fullmatch(text) or not is_plain or ".." in text or text.endswith((".lock", ".")):
        raise ConfigError(
            f"{place} has the reference {text[:200]!r}; use a commit of 40 digits, #123, a branch"
            " or a tag."
        )
    return text


def find_references(
    *,
    inputs: Mapping[str, str],
    body: str,
    lock: Mapping[str, str],
    dependencies: Mapping[str, Dependency],
    image_key: str,
    backend: str,
) -> dict[str, Reference]:
    """The references of a run by name, `image_tag` among them; what nobody names is left out.

    Args:
        inputs: what the person who dispatched the run typed, by input name; empty counts as
            not given.
        body: the pull request's text.
        lock: the lock file's references by name.
        dependencies: the declared dependencies.
        image_key: the input that names an image tag; in a body, where lanes are many, the line is
            `image_key-backend: tag`.
        backend: the backend whose image it is.
    """
    keys = {IMAGE: image_key} | {name: each.body_key for name, each in dependencies.items()}
    body_keys = keys | {IMAGE: f"{image_key}-{backend}"}
    lines = body_lines(body, list(body_keys.values()))
    defaults = {name: each.default for name, each in dependencies.items()}
    found: dict[str, Reference] = {}
    for name, key in keys.items():
        candidates = (
            ("input", inputs.get(key, "").strip(), f"the input {key}"),
            ("body", lines.get(body_keys[name], ""), f"the line {body_keys[name]}: of the body"),
            ("lock", lock.get(name, ""), f"the lock file's {name}"),
            ("ci.toml", defaults.get(name) or "", f"dependencies.{name}.default in ci.toml"),
        )
        chosen = next((each for each in candidates if each[1]), None)
        if chosen is not None:
            source, text, place = chosen
            check = check_image_tag if name == IMAGE else check_reference
            found[name] = Reference(check(text, place=place), source)
    return found


def body_lines(body: str, keys: Sequence[str]) -> dict[str, str]:
    """The values of lines `key: value`; raises ConfigError for a key with two values."""
    found: dict[str, str] = {}
    for line in re.split(r"\r\n|\n|\r", body):
        key, colon, text = line.partition(":")
        if not colon or key not in keys or not text.strip():
            continue
        text = text.strip()
        if found.setdefault(key, text) != text:
            raise ConfigError(f"the pull request's body has two lines {key}:; keep one.")
    return found


def read_lock(path: Path | None, config: Config, backend: str) -> dict[str, str]:
    """The references that a lock file has for a backend; None: there is no lock.

    The file has two TOML tables: [images] with a tag per backend, [references] with a full commit
    per dependency.
    """
    if path is None:
        return {}
    file = Table.read(path)
    images, commits = file.table("images"), file.table("references")
    file.done()
    found = {name: commits.text(name) for name in commits.names()}
    for name, text in found.items():
        if name not in config.section("dependencies").names():
            raise commits.error(name, "isn't a dependency that ci.toml declares.")
        if not COMMIT.fullmatch(text):
            raise commits.error(
                name, f"is {text!r}; a lock names a commit of 40 digits: a branch or tag can move."
            )
    for name in images.names():
        if name not in config.backends:
            raise images.error(name, f"is no backend; {known(name, config.backends)}")
        check_image_tag(images.text(name), place=f"{path.name}: images.{name}")
    return found | ({IMAGE: images.text(backend)} if images.has(backend) else {})


def pin(
    found: Mapping[str, Reference],
    dependencies: Mapping[str, Dependency],
    *,
    remote: Remote | None = None,
) -> dict[str, Reference]:
    """The references with each branch, tag and pull request replaced by its commit of now.

    What is approved is then what runs, however the branch moves in the meantime.
    """
    ask = remote or ask_remote
    pinned: dict[str, Reference] = {}
    for name, reference in found.items():
        if name == IMAGE or COMMIT.fullmatch(reference.value):
            pinned[name] = reference
        else:
            commit = ask(dependencies[name].url, reference.value)
            pinned[name] = Reference(commit, f"{reference.source} ({reference.value})")
    return pinned


def ask_remote(url: str, reference: str) -> str:
    """The commit that a reference of a remote repository stands for."""
    command = ["git", "ls-remote", "--exit-code", "--", url, reference, f"{reference}^{{}}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=REMOTE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ParityError(f"{url} didn't answer within {REMOTE_TIMEOUT_S:.0f} s.") from error
    found = {name: commit for commit, name in _pairs(done.stdout)}
    matching = [
        commit
        for name in (reference, f"refs/heads/{reference}", f"refs/tags/{reference}")
        if (commit := found.get(f"{name}^{{}}") or found.get(name)) is not None
    ]
    if done.returncode or not matching:
        raise ConfigError(
            f"{url} has no reference {reference!r} ({done.stderr.strip() or 'not found'})."
        )
    if len(set(matching)) > 1:
        raise ConfigError(
            f"{url} has a branch and a tag {reference!r}; name refs/heads/{reference} or"
            f" refs/tags/{reference}."
        )
    return matching[0]


def _pairs(listing: str) -> list[tuple[str, str]]:
    """Commit and name of each line of `git ls-remote`."""
    lines = (line.partition("\t") for line in listing.splitlines())
    return [(commit, name) for commit, tab, name in lines if tab]


def choose(config: Config, *, backend: str, inputs: str, body: str) -> dict[str, Reference]:
    """The pinned references of a run, from the texts that a rendered job has.

    Args:
        config: the repository's configuration, which names dependencies and the lock file.
        backend: the lane's.
        inputs: the dispatched run's inputs as a JSON object; `null` or empty: none.
        body: the pull request's text.
    """
    settings = read_settings(config)
    dependencies = read_dependencies(config)
    lock = None if settings.lock is None else config.root / settings.lock
    found = find_references(
        inputs=read_texts(inputs, place="the inputs"),
        body=body,
        lock=read_lock(lock, config, backend),
        dependencies=dependencies,
        image_key=settings.image_key,
        backend=backend,
    )
    return pin(found, dependencies)


def read_texts(text: str, *, place: str) -> dict[str, str]:
    """A JSON object of texts; `null` and the empty text are an empty one."""
    try:
        value: object = json.loads(text or "null")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place} aren't JSON ({error}).") from error
    if value is None:
        return {}
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {"": value}
    wrong = [name for name, each in fields.items() if not isinstance(each, str) or not name]
    if wrong:
        raise ConfigError(f"{place} must be a JSON object of texts; {wrong[0]!r} isn't one.")
    return {name: str(each) for name, each in fields.items()}
