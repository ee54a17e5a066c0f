"""When something has waited too long, on a clock that the test moves."""

from parity.supervise.judge import Judge, Watch
from parity.supervise.waits import Waits, waiting

TICK_S = 1.0


def wait_for(waits: Waits, deadline_s: float | None, progress=None):
    wait = waiting("driver", "a thing", deadline_s=deadline_s, limit="a.key", progress=progress)
    wait.register = waits
    return wait


def looks(judge: Judge, start: int, stop: int, waits: Waits, *watches: Watch):
    found = [judge.look(float(s), waits.open(), watches) for s in range(start, stop)]
    return found[-1]


def test_a_wait_is_overdue_after_its_deadline_and_not_before() -> None:
    waits, judge = Waits(), Judge(TICK_S)
    with wait_for(waits, 5.0):
        assert looks(judge, 0, 6, waits) is None
        overdue = judge.look(6.0, waits.open(), ())
    assert overdue is not None
    assert overdue.sentence() == (
        "driver waited 6.0 s for a thing; at most 5 s are allowed (a.key)"
    )
    assert judge.look(7.0, waits.open(), ()) is None, "it has ended"


def test_progress_begins_the_deadline_anew() -> None:
    waits, judge, ended = Waits(), Judge(TICK_S), [0]
    with wait_for(waits, 5.0, lambda: ended[0]):
        assert looks(judge, 0, 5, waits) is None
        ended[0] = 1
        assert looks(judge, 5, 11, waits) is None
        overdue = judge.look(11.0, waits.open(), ())
    assert overdue is not None
    assert "without any progress" in overdue.sentence()


def test_a_wait_that_its_owner_ends_is_never_overdue() -> None:
    waits, judge = Waits(), Judge(TICK_S)
    with wait_for(waits, None):
        assert looks(judge, 0, 1000, waits) is None


def test_time_in_which_the_process_was_stopped_does_not_count() -> None:
    waits, judge = Waits(), Judge(TICK_S)
    with wait_for(waits, 60.0):
        assert looks(judge, 0, 10, waits) is None
        assert judge.look(100_000.0, waits.open(), ()) is None
        assert looks(judge, 100_001, 100_030, waits) is None
        assert looks(judge, 100_030, 100_060, waits) is not None


def test_an_idle_role_may_be_silent_and_a_busy_one_may_not() -> None:
    waits, judge, busy, tokens = Waits(), Judge(TICK_S), [False], [0]
    role = Watch("engine", "a token", lambda: busy[0], lambda: tokens[0], deadline_s=5.0)
    assert looks(judge, 0, 100, waits, role) is None
    busy[0] = True
    assert looks(judge, 100, 105, waits, role) is None
    tokens[0] = 7
    assert looks(judge, 105, 110, waits, role) is None
    overdue = looks(judge, 110, 113, waits, role)
    assert overdue is not None
    assert overdue.owner == "engine"


def test_a_source_of_progress_that_raises_is_no_progress_and_no_end_of_the_watch() -> None:
    waits, judge = Waits(), Judge(TICK_S)

    def broken() -> int:
        raise RuntimeError("closed")

    with wait_for(waits, 5.0, broken):
        assert looks(judge, 0, 8, waits) is not None


def test_the_one_that_is_overdue_for_longest_is_named() -> None:
    waits, judge = Waits(), Judge(TICK_S)
    with wait_for(waits, 3.0), wait_for(waits, 1.0) as shorter:
        shorter.what = "the shorter one"
        overdue = looks(judge, 0, 6, waits)
    assert overdue is not None
    assert overdue.what == "the shorter one"
