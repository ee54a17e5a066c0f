import pytest
from ci_repository import CI_TOML

from parity.ci.config import OWNED
from parity.ci.cron import check_cron
from parity.ci.globs import expands
from parity.ci.loading import load_config, read_config
from parity.ci.toml import Table
from parity.errors import ConfigError


def read(toml, tmp_path):
    return read_config(Table.parse(toml), tmp_path / "ci.toml")


def test_a_file_is_read_with_its_defaults(tmp_path):
    config = read(CI_TOML, tmp_path)

    suite = config.suites["mi300-4"]
    assert (suite.backend, suite.devices, suite.is_self_hosted) == ("rocm", 4, True)
    assert suite.cadences == ("regular", "nightly", "weekly", "release")
    assert not config.suites["cpu-fast"].is_self_hosted
    assert config.backends["cuda"].needs_labels
    assert config.cadences["weekly"].cron == ("0 15 * * 6",)
    assert config.paths[1].suites == ("mi300-4",)
    assert set(config.sections) == set(OWNED)


HOSTILE = {
    "an unknown key": ("shards = 2", "shard = 2", "suites.cpu-fast.shard is unknown", "shards"),
    "an unknown section": ("[project]", "[projekt]\nx = 1\n[project]", "projekt is unknown", ""),
    "a missing file key": ('description = "AMD"', "", "backends.rocm.description is missing", ""),
    "an unknown backend": ('backend = "npu"', 'backend = "npx"', "'npx'", "'npu'?"),
    "no devices on an accelerator": ("devices = 8", "devices = 0", "suites.npu-8.devices", ">= 1"),
    "devices on a CPU": ('backend = "cpu"', 'backend = "cpu"\ndevices = 2', "must be 0", ""),
    "a need that isn't there": ('["cpu-fast"]', '["cpu-slow"]', "'cpu-slow'", "cpu-fast"),
    "a cycle of needs": (
        'runner = ["ubuntu-latest"]',
        'runner = ["ubuntu-latest"]\nneeds = ["h100-4"]',
        "leads back",
        "",
    ),
    "an unknown scope": ('scope = "image"', 'scope = "imago"', "'imago'", "image"),
    "an unknown label in a scope": ('minus = ["long"]', 'minus = ["lang"]', "'lang'", "long"),
    "a broken cron line": ('"0 15 * * 6"', '"0 25 * * 6"', "no hour", ""),
    "a cron line with two meanings": ('"0 15 * * 6"', '"0 15 * * 0-5"', "already means", ""),
    "a path rule for no suite": ('"mi300-*"', '"mi355-*"', "'mi355-*'", "mi300-4"),
    "a label that means two things": (
        "[workflow_labels.run-ci-all]",
        "[workflow_labels.run-ci-long]",
        "'long'",
        "",
    ),
    "a command that runs no file": (', "{file}"]', "]", "has no {file}", ""),
    "a type that doesn't fit": ("shards = 2", 'shards = "2"', "must be a whole number", ""),
    "true as a number": ("shards = 2", "shards = true", "must be a whole number", ""),
    "a root outside": ('roots = ["tests"]', 'roots = ["../tests"]', "inside the repository", ""),
    "another schema": ("schema = 1", "schema = 2", "schema is 2", ""),
    "no TOML": ("schema = 1", "schema = ", "isn't valid TOML", "line 1"),
    "implicit tests on devices": ('suite = "cpu-fast"', 'suite = "h100-4"', "takes devices", ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_wrong_configuration_is_refused_with_file_line_and_what_is_known(name, tmp_path):
    old, new, found, allowed = HOSTILE[name]
    assert old in CI_TOML
    text = CI_TOML.replace(old, new, 1)

    with pytest.raises(ConfigError) as error:
        read(text, tmp_path)

    message = str(error.value)
    assert message.startswith("ci.toml")
    assert found in message
    assert allowed in message
    if name != "no TOML":
        line = int(message.split(":")[1])
        assert 1 <= line <= len(text.splitlines())


def test_the_line_in_an_error_is_that_of_the_key(tmp_path):
    text = CI_TOML.replace("devices = 8", "devices = -1")

    with pytest.raises(ConfigError) as error:
        read(text, tmp_path)

    line = int(str(error.value).split(":")[1])
    assert text.splitlines()[line - 1] == "devices = -1"


def test_a_missing_file_is_told_with_its_path(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no .*ci\.toml"):
        load_config(tmp_path)


@pytest.mark.parametrize("line", ["0 15 * * 0-5", "*/15 0 1,15 JAN-MAR SUN", "59 23 31 12 6"])
def test_cron_lines_that_run(line):
    assert check_cron(line) is None


@pytest.mark.parametrize(
    "line", ["", "* * * *", "60 * * * *", "* * 0 * *", "* * * * 7", "5-1 * * * *", "*/0 * * * *",
             "a * * * *", "@daily", "* * * * * *"],
)  # fmt: skip
def test_cron_lines_that_the_service_would_refuse(line):
    assert check_cron(line)


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("docs/**", "docs/a/b.md", True),
        ("docs/**", "docs/a.md", True),
        ("docs/**", "doc/a.md", False),
        ("docs/", "docs/a.md", True),
        ("*.md", "a/b/README.md", True),
        ("*.md", "README.md", True),
        ("*.md", "README.mdx", False),
        ("src/*/a.py", "src/b/a.py", True),
        ("src/*/a.py", "src/b/c/a.py", False),
        ("src/**/a.py", "src/a.py", True),
        ("src/a.py", "lib/src/a.py", False),
        ("*", ".github/workflows/x.yml", True),
    ],
)
def test_patterns_match_whole_paths(pattern, path, is_match):
    assert expands(pattern, path) is is_match
