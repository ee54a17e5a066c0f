"""The table of live requests keeps every request's own numbers through all moves."""

import random

import numpy as np
import pytest

from parity.engines.embedded.request import Request
from parity.engines.embedded.rows import Rows
from parity.types import Sampling


def request(number: int, *, max_new_tokens: int = 9, stop: tuple[int, ...] = ()) -> Request:
    sampling = Sampling(max_new_tokens=max_new_tokens, stop_token_ids=stop, seed=number)
    return Request(f"r{number}", (number, number + 1), sampling, seed=number)


def record(rows: Rows, ids: list[int], version: int = 0) -> None:
    slots = np.arange(rows.size)
    logprobs = np.array([-token / 2 for token in ids], np.float32)
    rows.record(slots, np.array(ids), logprobs, version=version)


def test_slots_are_taken_from_holes_first() -> None:
    rows = Rows(capacity=6)
    assert rows.take_slots(4) == [0, 1, 2, 3]
    for slot in range(4):
        rows.put(slot, request(slot), prompt_version=0)
    rows.free(2)
    rows.free(0)
    assert rows.num_live == 2
    assert rows.take_slots(1) == [0]
    assert rows.take_slots(2) == [2, 4]
    assert rows.size == 5
    assert rows.num_live == 5


def test_a_completion_holds_what_was_recorded_for_its_slot() -> None:
    rows = Rows(capacity=2)
    for slot in rows.take_slots(2):
        rows.put(slot, request(slot), prompt_version=4)
    record(rows, [10, 20], version=4)
    record(rows, [11, 21], version=5)
    found = rows.completion(1, "length")
    assert found.tokens == (20, 21)
    assert found.logprobs == (-10.0, -10.5)
    assert found.versions == (4, 5)
    assert found.prompt_version == 4
    assert rows.next_token[:2].tolist() == [11, 21]
    assert rows.answer(0).tolist() == [10, 11]


def test_stop_ids_belong_to_their_request_only() -> None:
    rows = Rows(capacity=3)
    rows.take_slots(3)
    rows.put(0, request(0, stop=(5,)), prompt_version=0)
    rows.put(1, request(1), prompt_version=0)
    rows.put(2, request(2, stop=(7, 8, 9)), prompt_version=0)
    slots = np.arange(3)
    assert rows.hit_stop_id(slots, np.array([5, 5, 5])).tolist() == [True, False, False]
    assert rows.hit_stop_id(slots, np.array([9, 9, 9])).tolist() == [False, False, True]
    rows.free(2)
    assert rows.take_slots(1) == [2]
    rows.put(2, request(3), prompt_version=0)
    assert not rows.hit_stop_id(slots, np.array([7, 8, 9])).any()


@pytest.mark.parametrize("seed", range(8))
def test_closing_holes_and_permuting_lose_and_mix_up_nothing(seed: int) -> None:
    chooser = random.Random(seed)
    rows = Rows(capacity=12)
    for slot in rows.take_slots(12):
        rows.put(slot, request(slot), prompt_version=slot)
    record(rows, list(range(12)))
    for slot in chooser.sample(range(12), chooser.randint(1, 11)):
        rows.free(slot)
    alive = {found.request_id for found in rows.requests if found is not None}
    sources, targets = rows.plan_closing()
    assert not set(sources) & set(targets)
    rows.move(sources, targets)
    rows.drop_holes()
    order = list(range(rows.size))
    chooser.shuffle(order)
    rows.move(order, list(range(rows.size)))
    assert {rows.required(slot).request_id for slot in range(rows.size)} == alive
    for slot in range(rows.size):
        number = rows.required(slot).seed
        assert rows.completion(slot, "length").tokens == (number,)
        assert rows.seed[slot] == rows.prompt_version[slot] == rows.next_token[slot] == number
    assert all(rows.requests[slot] is None for slot in range(rows.size, 12))
