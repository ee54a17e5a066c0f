"""The register of waits."""

import threading
import time

import pytest

from parity.supervise.waits import WAITS, Waits, note, waiting


def test_a_wait_is_in_the_register_while_it_lasts_and_leaves_an_event() -> None:
    WAITS.clear()
    with waiting("driver", "step 3", deadline_s=1.0):
        (wait,) = WAITS.open()
        assert (wait.owner, wait.what) == ("driver", "step 3")
        assert WAITS.events()["driver"].text == "began to wait for step 3"
    assert WAITS.open() == []
    assert WAITS.events()["driver"].text.startswith("had waited 0.0 s for step 3")


def test_a_wait_that_breaks_off_says_by_what() -> None:
    WAITS.clear()
    with pytest.raises(KeyError), waiting("driver", "step 3", deadline_s=1.0):
        raise KeyError
    assert WAITS.open() == []
    assert WAITS.events()["driver"].text.startswith("broke off (KeyError) after")


def test_many_threads_may_wait_at_once() -> None:
    WAITS.clear()
    inside = threading.Barrier(9)

    def wait(number: int) -> None:
        for _ in range(200):
            with waiting(f"role {number}", "work", deadline_s=None):
                note(f"role {number}", "worked")
        with waiting(f"role {number}", "the others", deadline_s=None):
            inside.wait(10)
            inside.wait(10)

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    assert sorted(wait.owner for wait in WAITS.open()) == [f"role {n}" for n in range(8)]
    inside.wait(10)
    for thread in threads:
        thread.join(10)
    assert WAITS.open() == []


def test_entering_and_leaving_costs_microseconds() -> None:
    waits = Waits()
    begun_s = time.perf_counter()
    for _ in range(2000):
        wait = waiting("driver", "step", deadline_s=1.0)
        wait.register = waits
        with wait:
            pass
    assert (time.perf_counter() - begun_s) / 2000 < 1e-3, "a thousand times what it should cost"
