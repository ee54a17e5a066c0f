"""Every `parity ci` line that a document shows is run by exactly one test."""

from collections import Counter
from pathlib import Path

from runs.test_ci_run import documented
from unit.ci.plan import test_page
from unit.ci.workflow import test_docs

ROOT = Path(__file__).parents[3]


def test_each_line_of_the_documents_is_run_by_one_test() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    lines = (line for page in pages for line in page.read_text(encoding="utf-8").splitlines())
    shown = Counter(line for line in lines if line.lstrip("$ ").startswith("parity ci "))
    run = [f"parity {line}" for line in (*test_page.COMMANDS, *test_docs.COMMANDS)]
    assert Counter([*run, *documented()]) == shown
    assert set(shown.values()) == {1}
