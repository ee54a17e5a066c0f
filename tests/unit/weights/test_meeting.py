"""Groups are made by those who come, and whoever doesn't come or dies is named in time."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from unit.weights.ends import CONFIG, at_once, same, store_of

from parity.errors import DeadlineError, TransferError
from parity.weights.collective import CollectiveReceiver, CollectiveTransfer
from parity.weights.session.meeting import Circle, Meeting, join, tell_lost
from parity.weights.transfer import Weights

TENSORS = [("a", torch.randn(500, 64)), ("b", torch.randn(3))]


def together(meeting: Meeting, circle: Circle, *, timeout_s: float = 60):
    """The groups of all members, made side by side."""
    with ThreadPoolExecutor(len(circle.members)) as pool:
        making = [
            pool.submit(join, meeting.address, circle, rank, timeout_s=timeout_s)
            for rank in range(len(circle.members))
        ]
        return [each.result() for each in making]


def test_one_store_serves_group_after_group_each_of_other_members():
    meeting = Meeting("127.0.0.1")
    stores = [store_of(TENSORS) for _ in range(2)]
    for number, members in enumerate([("t", "e0", "e1"), ("t", "e1"), ("t", "e0", "e1")], 1):
        root, *others = together(meeting, Circle(f"circle-{number}", members))
        used = [stores[int(name[-1])] for name in members[1:]]
        receivers = [CollectiveReceiver(g, s) for g, s in zip(others, used, strict=True)]
        transfer = CollectiveTransfer(root, CONFIG)
        asyncio.run(transfer.publish(Weights(TENSORS), version=number, switch=at_once))
        asyncio.run(transfer.close())
        for receiver in receivers:
            receiver.close()
        assert all(same(store, TENSORS) and store.version == number for store in used)


def test_an_absent_member_is_named_at_the_deadline():
    meeting = Meeting("127.0.0.1")
    circle = Circle("circle-1", ("trainer-0", "engine-0", "engine-1"))
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        joining = [pool.submit(join, meeting.address, circle, rank, timeout_s=2) for rank in (0, 1)]
        for each in joining:
            with pytest.raises(DeadlineError, match="nothing came from engine-1 within 2 s"):
                each.result()
    assert time.monotonic() - began < 30


def test_a_receiver_that_was_in_the_group_and_never_serves_is_named_at_the_deadline():
    meeting = Meeting("127.0.0.1")
    root, idle = together(meeting, Circle("circle-1", ("trainer-0", "engine-0")))
    transfer = CollectiveTransfer(root, replace(CONFIG, timeout_s=1.0))
    with pytest.raises(DeadlineError, match="nothing came from engine-0 within 1 s in phase conn"):
        asyncio.run(transfer.publish(Weights(TENSORS), version=1, switch=at_once))
    asyncio.run(transfer.close())
    idle.close()


def test_nobody_waits_for_a_member_that_is_told_lost():
    meeting = Meeting("127.0.0.1")
    circle = Circle("circle-1", ("trainer-0", "engine-0"))
    teller = threading.Timer(
        0.3, tell_lost, (meeting.address, circle, "engine-0"), {"timeout_s": 10.0}
    )
    teller.start()
    with pytest.raises(TransferError, match="engine-0 died; make a new process group"):
        join(meeting.address, circle, 0, timeout_s=300)
    teller.join()


def test_a_publication_ends_when_a_member_is_told_lost():
    meeting = Meeting("127.0.0.1")
    circle = Circle("circle-1", ("trainer-0", "engine-0"))
    root, idle = together(meeting, circle)
    transfer = CollectiveTransfer(root, replace(CONFIG, timeout_s=300))
    teller = threading.Timer(
        0.3, tell_lost, (meeting.address, circle, "engine-0"), {"timeout_s": 10.0}
    )
    teller.start()
    with pytest.raises(TransferError, match="engine-0: its process died"):
        asyncio.run(transfer.publish(Weights(TENSORS), version=1, switch=at_once))
    teller.join()
    idle.close()
    with pytest.raises(TransferError, match="can't be used any more"):
        root.close()
        root.broadcast(torch.zeros(1))


def test_a_store_that_is_gone_is_an_error_in_time():
    with pytest.raises(TransferError, match=r"store of trainer rank 0 at 127\.0\.0\.1:1 can't be"):
        join("127.0.0.1:1", Circle("circle-1", ("t", "e")), 1, timeout_s=0.5)
    with pytest.raises(TransferError, match=r"can't be met at 192\.0\.2\.1"):
        Meeting("192.0.2.1")
