import asyncio

import pytest

from parity.observe import later
from parity.observe.later import Later


def test_work_is_done_in_order_and_once(monkeypatch):
    monkeypatch.setattr(later, "DELAY_S", 0.01)
    done = []

    async def main():
        work = Later()
        work.do(lambda: done.append(1))
        assert done == []
        work.do(lambda: done.append(2))
        assert done == [1]
        await asyncio.sleep(0.05)
        assert done == [1, 2]
        work.now()
        work.do(lambda: done.append(3))
        work.now()
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert done == [1, 2, 3]


def test_an_error_is_raised_at_the_next_call(monkeypatch):
    monkeypatch.setattr(later, "DELAY_S", 0.0)

    def fail():
        raise OSError("the disk is full")

    async def main():
        work = Later()
        work.do(fail)
        await asyncio.sleep(0.02)
        with pytest.raises(OSError, match="disk is full"):
            work.now()
        work.now()

    asyncio.run(main())
