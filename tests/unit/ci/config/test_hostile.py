"""A ci.toml made to break or to deceive, and patterns and paths made to take for ever."""

import time

import pytest
from ci_repository import CI_TOML

from parity.ci.cron import check_cron
from parity.ci.globs import expands
from parity.ci.loading import load_config
from parity.errors import ConfigError

HEX = "0x" + "F" * 6000
SHARDS, EST = "shards = 2", "est_time = 1.0"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema = 1", f"schema = {HEX}", "ci.toml:1: schema is a value of type int"),
        ("schema = 1", f"schema = {'9' * 6000}", "isn't valid TOML"),
        ("schema = 1", f"schema = {'[' * 5000}", "isn't valid TOML"),
        ("schema = 1", f"schema = 1\n#{'x' * 2**20}", "at most 1048576"),
        (SHARDS, "shards = 0", "1 to 256"),
        (SHARDS, "shards = -1", "1 to 256"),
        (SHARDS, "shards = 1000000000", "1 to 256"),
        (EST, f"est_time = {HEX}", "est_time is a value of type int"),
        (EST, "est_time = 0", "0.001 to 604800"),
        (EST, "est_time = -0.0", "0.001 to 604800"),
        (EST, "est_time = inf", "0.001 to 604800"),
        (EST, "est_time = nan", "0.001 to 604800"),
        ("[suites.h100-4]", '[suites."h1\\n::x::"]', "suites.'h1\\n::x::' has a name"),
        ("[suites.h100-4]", '[suites."-h100"]', "has a name"),
        ("[suites.h100-4]", '[suites."é"]', "has a name"),
        ("[suites.h100-4]", '[suites."CPU.FAST"]', "too much alike"),
        ("[backends.npu]", '[backends."n-u"]', "is no name for register_n-u_ci"),
        ("[backends.npu]", "[backends.ci_gate]", "is no name for register_ci_gate_ci"),
        ('"AMD"', '"AMD"\nenv = {"A=B" = "x"}', "no environment variable"),
        ('"AMD"', '"AMD"\nenv = {A = "x\\u0000"}', "no environment variable"),
        ('"AMD"', '"\\u001b[0m"', "control characters"),
        ('roots = ["tests"]', 'roots = ["te\\u0000sts"]', "control characters"),
    ],
)
def test_it_is_refused_in_one_printable_line(old, new, said, tmp_path):
    (tmp_path / "ci.toml").write_text(CI_TOML.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path)
    assert said in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600


def test_a_byte_order_mark_and_crlf_change_nothing(tmp_path):
    (tmp_path / "ci.toml").write_bytes(("\ufeff" + CI_TOML.replace("\n", "\r\n")).encode())
    assert set(load_config(tmp_path).suites) >= {"cpu-fast", "h100-4"}


def test_hundreds_of_suites_that_need_each_other_are_read_in_time(tmp_path):
    suites = "".join(
        f'\n[suites.s{n}]\ndescription = "x"\nbackend = "cpu"\nrunner = ["x"]\n'
        f"needs = {[f's{each}' for each in range(max(0, n - 20), n)]}\n"
        for n in range(200)
    )
    (tmp_path / "ci.toml").write_text(CI_TOML + suites)
    begun = time.process_time()
    load_config(tmp_path)
    assert time.process_time() - begun < 5.0


@pytest.mark.parametrize(
    "line",
    [
        "0 15 * *", "0  15 * * 6", "0 15 *\n* 6", "0 15 * * 6 ", "@daily", "", "60 * * * *",
        "٣ 15 * * 6", f"*/{'9' * 5000} 15 * * 6", "*/0 15 * * *", "0 15 L * *", "0 15 * * 7",
        "0 22-2 * * *", "0, 15 * * *", "-1 15 * * *", "0 15 31 2 *", "0 15 30-31 2 *",
        "0 15 31 APR,JUN *", "1.5 * * * *",
    ],
)  # fmt: skip
def test_a_cron_line_that_would_never_start_is_refused(line):
    assert check_cron(line) is not None


@pytest.mark.parametrize(
    "line",
    ["0 15 * * 0-5", "*/5 0-23/2 1,15 * SUN-SAT", "0 0 29 2 *", "0 0 31 2 1", "5/15 * * * *"],
)
def test_a_cron_line_of_the_service_is_good(line):
    assert check_cron(line) is None


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("**/" * 200 + "x", "a/" * 500 + "b", False),
        ("**/" * 200 + "x", "a/" * 500 + "x", True),
        ("*a" * 40, "a" * 2000 + "b", False),
        ("*a" * 40, "a" * 2000, True),
        ("**/*a*b*c/**/*.py", "/".join(["aabbaacc"] * 400) + "/x.txt", False),
        ("a/**/b/**/c", "a/x/b/y/b/z/c", True),
        ("a/**/b", "a/b", True),
        ("a/**", "a", False),
        ("a/**", "a/b\nc", True),
        ("*.md", "a/b\n.md", True),
        ("a**b/c", "axxb/c", True),
        ("a**b/c", "ax/xb/c", False),
        ("[a].md", "a.md", False),
        ("A.md", "a.md", False),
    ],
)
def test_a_pattern_is_answered_at_a_glance(pattern, path, fits):
    begun = time.process_time()
    assert expands(pattern, path) is fits
    assert time.process_time() - begun < 2.0
