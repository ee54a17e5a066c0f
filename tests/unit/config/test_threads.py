"""Threads per role: by mode, by what the user set, and by what the machine allows."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.config.threads import available_cores, plan, read_limits, usable_cores


@pytest.mark.parametrize(
    ("cores", "max_lag", "trainer", "engine"),
    [
        (1, 0, 1, 1),
        (2, 0, 2, 2),
        (8, 0, 8, 8),
        (1, 1, 1, 1),
        (2, 1, 1, 1),
        (3, 0.5, 2, 1),
        (8, 4, 4, 4),
    ],
)
def test_roles_take_turns_or_split(cores: int, max_lag: float, trainer: int, engine: int):
    found = plan(cores, max_lag, None, None, None)
    assert (found.trainer, found.engine) == (trainer, engine)
    assert "warning" not in found.reason


def test_numbers_that_the_user_set_win_and_are_named():
    found = plan(4, 1.0, 3, None, 1)
    assert (found.trainer, found.engine) == (3, 1)
    assert "threads.trainer=3 was set" in found.reason


def test_more_threads_than_cores_are_allowed_with_a_warning():
    found = plan(2, 1.0, 2, 2, None)
    assert (found.trainer, found.engine) == (2, 2)
    assert "warning: 4 threads would compute at once on 2 cores" in found.reason
    assert "warning: 8 threads" in plan(2, 0.0, 8, None, None).reason
    assert "warning" not in plan(2, 0.0, 2, 2, None).reason


def test_omp_num_threads_bounds_each_role():
    found = plan(8, 0.0, None, None, 2)
    assert (found.trainer, found.engine) == (2, 2)
    assert "OMP_NUM_THREADS=2" in found.reason
    assert "OMP" not in plan(2, 1.0, None, None, 4).reason


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 256), st.floats(0, 10), st.none() | st.integers(1, 64))
def test_chosen_threads_never_exceed_the_cores(cores: int, max_lag: float, omp: int | None):
    found = plan(cores, max_lag, None, None, omp)
    assert min(found.trainer, found.engine) >= 1
    if max_lag > 0 and cores > 1:
        assert found.trainer + found.engine <= cores
    assert max(found.trainer, found.engine) <= cores


@pytest.mark.parametrize(
    ("affinity", "limits", "cores"),
    [
        (8, [], 8),
        (8, ["max 100000\n"], 8),
        (8, ["200000 100000\n"], 2),
        (8, ["150000 100000", "max 100000"], 1),
        (8, ["50000 100000"], 1),
        (2, ["400000 100000"], 2),
        (8, ["600000 100000", "300000 100000"], 3),
    ],
)
def test_cores_are_bounded_by_affinity_and_every_cgroup(affinity, limits, cores):
    assert usable_cores(affinity, limits) == cores


def test_limits_are_read_from_the_own_cgroup_up_to_the_root(tmp_path: Path):
    root = tmp_path / "cgroup"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "cpu.max").write_text("300000 100000\n")
    (root / "a" / "b" / "cpu.max").write_text("max 100000\n")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    membership = tmp_path / "self"
    membership.write_text("1:name=x:/other\n0::/a/b\n")
    assert read_limits(root, membership) == ["max 100000\n", "300000 100000\n"]
    assert read_limits(root, tmp_path / "gone") == []
    membership.write_text("0::/gone\n")
    assert read_limits(root, membership) == []


def test_this_machine_has_a_core():
    assert available_cores() >= 1
