import ast
import json
import os

import pytest
from ci_repository import IMPORT, inventory, repository

from parity.ci.model import Registration
from parity.ci.partition.estimates import Measured, audit, placeholder_warnings, rounded
from parity.ci.partition.measured import read_measured
from parity.ci.partition.rewrite import rewrite
from parity.errors import DataError


def registration(path, est_time_s, **more):
    return Registration(path, 1, "cuda", more.pop("suite", "h100-4"), est_time_s, **more)


def times(path, *seconds, suite="h100-4"):
    return [Measured(path, "cuda", suite, each) for each in seconds]


def test_an_estimate_that_is_off_gets_a_better_literal():
    found = audit([registration("a", 600.0)], times("a", 1990, 2000, 2100))

    (proposal,) = found.proposals
    assert (proposal.median_s, proposal.num_runs, proposal.est_time_s) == (2000, 3, 2220)
    assert proposal.text.startswith("a:1: est_time 600 -> 2220")


@pytest.mark.parametrize("measured_s", [480.1, 600, 790])
def test_an_estimate_within_a_quarter_holds(measured_s):
    assert not audit([registration("a", 600.0)], times("a", measured_s)).proposals


def test_a_few_seconds_dont_matter():
    assert not audit([registration("a", 1.0)], times("a", 30)).proposals


def test_only_the_newest_times_count():
    old, new = [5000] * 50, [600] * 10

    assert not audit([registration("a", 600.0)], times("a", *old, *new)).proposals


def test_times_of_other_hardware_are_kept_apart():
    found = audit([registration("a", 600.0)], times("a", 9000, suite="h100-8"))

    assert not found.proposals
    assert [each.path for each in found.unmeasured] == ["a"]
    assert found.strangers == ("cuda/h100-8:a",)


@pytest.mark.parametrize(("time_s", "wanted"), [(0.2, 1), (29.1, 30), (31, 35), (121, 130),
                                                (601, 660), (3600, 3600)])  # fmt: skip
def test_a_proposal_is_a_round_number(time_s, wanted):
    assert rounded(time_s) == wanted


def test_three_long_tests_with_the_same_estimate_are_warned_of():
    same = [registration(path, 600.0) for path in "abc"]

    (warning,) = placeholder_warnings(same)
    assert "3 tests have the same estimate of 600 s" in warning
    assert not placeholder_warnings(same[:2])
    assert not placeholder_warnings([registration(path, 10.0) for path in "abc"])
    assert not placeholder_warnings([registration(path, 600.0, suite=path) for path in "abc"])


def result(outcome, time_s, attempts=1, path="tests/a.py"):
    return {"path": path, "outcome": outcome, "time_s": time_s, "attempts": [{}] * attempts}


def test_only_clean_passes_are_measured(tmp_path):
    files = [result("pass", 5.0), result("fail", 1.0), result("pass", 9.0, attempts=2)]
    text = json.dumps({"backend": "cuda", "suite": "s", "files": files})
    (tmp_path / "shard-0").mkdir()
    (tmp_path / "shard-0" / "results.json").write_text(text)

    assert read_measured([tmp_path]) == [Measured("tests/a.py", "cuda", "s", 5.0)]


def test_plain_lines_are_read_oldest_file_first(tmp_path):
    row = {"path": "a", "backend": "cuda", "suite": "s"}
    for name, at in (("new.jsonl", 2000), ("old.jsonl", 1000)):
        (tmp_path / name).write_text(json.dumps({**row, "time_s": at}) + "\n\n")
        os.utime(tmp_path / name, (at, at))

    found = read_measured([tmp_path / "new.jsonl", tmp_path / "old.jsonl"])

    assert [each.time_s for each in found] == [1000, 2000]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"path": "a"}', '{"path": "a", "backend": "b", "suite": "s", "time_s": -1}',
     '{"path": "a", "backend": "b", "suite": "s", "time_s": NaN}',
     '{"path": "a", "backend": "b", "suite": "s", "time_s": true}'],
)  # fmt: skip
def test_a_broken_record_is_refused_with_its_place(text, tmp_path):
    (tmp_path / "t.jsonl").write_text(text)

    with pytest.raises(DataError, match=r"t\.jsonl:1: "):
        read_measured([tmp_path / "t.jsonl"])


def test_a_place_without_times_is_refused(tmp_path):
    for place in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(DataError):
            read_measured([place])


def test_rewriting_changes_the_numbers_and_nothing_else(tmp_path):
    text = (
        IMPORT
        + 'register_cuda_ci(60, "h100-4", labels=["fsdp"])  # 60 s, ä\n'
        + 'register_rocm_ci(\n    suite="mi300-4", est_time=60.0, labels=["fsdp"]\n)\n'
    )
    files = {"tests/hw/test_x.py": text}
    config = repository(tmp_path, files)
    found = inventory(tmp_path, files)
    measured = times("tests/hw/test_x.py", 1000)
    measured.append(Measured("tests/hw/test_x.py", "rocm", "mi300-4", 2000))

    assert rewrite(config.root, audit(found.registrations, measured).proposals)

    wanted = text.replace("_ci(60,", "_ci(1140,").replace("est_time=60.0", "est_time=2220")
    changed = (tmp_path / "tests/hw/test_x.py").read_text()
    assert changed == wanted
    ast.parse(changed)
