"""Which end means what: a table, so that every row can be read."""

import re
import textwrap
from pathlib import Path

import pytest

from parity.ci.run.classify import classify
from parity.ci.run.counts import read_counts, with_report
from parity.ci.run.execute import Ending
from parity.ci.run.result import Counts, Outcome
from parity.ci.run.settings import RunSettings
from parity.ci.toml import Table
from parity.errors import ConfigError

PATTERNS = {"lost connection": re.compile("Connection reset by peer")}
RESET = "ConnectionError: Connection reset by peer\n"
ASSERTION = "AssertionError: loss 0.31 is not below 0.3\n"


def ending(
    *, code: int | None = None, signal: int | None = None, is_timeout: bool = False
) -> Ending:
    return Ending(is_timeout, code, signal, 1.0, (), ())


ROWS = [
    ("a zero is a pass", ending(code=0), "", None, Outcome.PASS, None),
    ("a zero with a known cause in the log", ending(code=0), RESET, None, Outcome.PASS, None),
    ("a failed assertion", ending(code=1), ASSERTION, None, Outcome.FAIL, None),
    ("any other error", ending(code=1), "ValueError: x\n", None, Outcome.FAIL, None),
    ("a known cause", ending(code=1), RESET, None, Outcome.INFRASTRUCTURE, "lost connection"),
    ("a cause, then an assertion", ending(code=1), RESET + ASSERTION, None, Outcome.FAIL, None),
    ("an assertion, then a cause", ending(code=1), ASSERTION + RESET, None, Outcome.FAIL, None),
    ("pytest's assertion", ending(code=1), f"E   assert 1 == 2\n{RESET}", None, Outcome.FAIL, None),
    (
        "pytest's last line",
        ending(code=1),
        f"{RESET}FAILED t.py::test_a - assert 3 > 4\n",
        None,
        Outcome.FAIL,
        None,
    ),
    (
        "a cause far above the end was handled",
        ending(code=1),
        RESET + "line\n" * 300,
        None,
        Outcome.FAIL,
        None,
    ),
    ("the typed code", ending(code=75), "", None, Outcome.INFRASTRUCTURE, "exit code 75"),
    ("a time-out", ending(is_timeout=True), RESET, None, Outcome.TIMEOUT, None),
    ("a signal", ending(signal=11), "", None, Outcome.CRASHED, None),
    ("a signal through a shell", ending(code=139), "", None, Outcome.CRASHED, None),
    ("a signal with a cause", ending(signal=6), RESET, None, Outcome.INFRASTRUCTURE,
     "lost connection"),
    ("an unknown high code", ending(code=255), "", None, Outcome.FAIL, None),
    ("nothing ran", ending(code=0), "", Counts(0, 0, 0), Outcome.FAIL, None),
    ("pytest found nothing", ending(code=5), "", Counts(0, 0, 0), Outcome.FAIL, None),
    ("all skipped", ending(code=0), "", Counts(0, 0, 3), Outcome.SKIPPED, None),
    ("some skipped", ending(code=0), "", Counts(1, 0, 3), Outcome.PASS, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("end", "tail", "counts", "outcome", "cause"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_every_end_has_one_meaning(
    end: Ending, tail: str, counts: Counts | None, outcome: Outcome, cause: str | None
) -> None:
    found = classify(end, tail, timeout_s=5.0, patterns=PATTERNS, counts=counts)
    assert (found.outcome, found.cause) == (outcome, cause)
    assert bool(found.reason) == (outcome is not Outcome.PASS)


def test_the_reason_is_the_last_error_or_how_it_ended() -> None:
    def reason(end: Ending, tail: str) -> str:
        return classify(end, tail, timeout_s=5.0, patterns={}, counts=None).reason

    assert reason(ending(code=1), f"KeyError: 'a'\nsome line\n{ASSERTION}") == ASSERTION.strip()
    assert reason(ending(code=4), "") == "ended with code 4"
    assert reason(ending(code=137), "") == "ended with code 137, which stands for SIGKILL"
    assert "want of memory" in reason(ending(signal=9), "")
    assert reason(ending(is_timeout=True), "") == "still ran after 5 s and was killed"


SCRIPTS = {
    "def test_a():\n    pass\n": True,
    "import x\nregister_cpu_ci(1.0, 'fast')\ndef test_a():\n    check()\n": True,
    "class TestA:\n    def test_a(self): check()\n": True,
    "def test_a(): pass\nif __name__ == '__main__':\n    test_a()\n": False,
    "def test_a(): pass\ntest_a()\n": False,
    "def test_a(): pass\nraise SystemExit(test_a())\n": False,
    "def test_a(): pass\nfor n in range(3):\n    test_a()\n": False,
    "print('a script without test functions')\n": False,
    "syntax error": False,
}


@pytest.mark.parametrize(("source", "never_begins"), SCRIPTS.items())
def test_a_script_that_only_defines_tests_has_run_none(
    tmp_path: Path,
    source: str,
    never_begins: bool,  # noqa: FBT001
) -> None:
    path = tmp_path / "test_a.py"
    path.write_text(source)
    counts = read_counts(["python", "test_a.py"], tmp_path / "none.xml", path)
    assert counts == (Counts(0, 0, 0) if never_begins else None)


def test_pytest_is_asked_for_its_report_and_the_report_is_read(tmp_path: Path) -> None:
    report = tmp_path / "pytest.xml"
    argv = with_report(["python", "-m", "pytest", "t.py"], report)
    assert argv[-1] == f"--junitxml={report}"
    assert with_report(["python", "t.py"], report) == ["python", "t.py"]
    assert read_counts(argv, report, tmp_path / "t.py") is None
    report.write_text(
        "<testsuites><testsuite><testcase/><testcase><failure/></testcase>"
        "<testcase><skipped/></testcase><testcase><error/></testcase></testsuite></testsuites>"
    )
    assert read_counts(argv, report, tmp_path / "t.py") == Counts(1, 2, 1)


def settings(text: str) -> RunSettings:
    return RunSettings.of(Table.parse(textwrap.dedent(text), file="ci.toml"))


def test_the_section_is_read_and_has_defaults() -> None:
    found = settings('retries = 2\n[infrastructure]\n"lost" = "reset by peer"')
    assert found.retries == 2
    assert found.infrastructure["lost"].search("x reset by peer")
    assert settings("") == RunSettings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retry = 2", "unknown"),
        ('[infrastructure]\n"a" = "("', "isn't a regular expression"),
        ('[infrastructure]\n"a" = ".*"', "matches everything"),
        ("retries = -1", ">= 0"),
    ],
)
def test_a_wrong_section_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings(text)
