"""The table of live requests keeps every request's own numbers from start to end."""

import numpy as np
import pytest

from parity.engines.embedded.request import Request
from parity.engines.embedded.rows import Rows
from parity.types import Sampling


def request(number: int, *, max_new_tokens: int = 9, stop: tuple[int, ...] = ()) -> Request:
    sampling = Sampling(max_new_tokens=max_new_tokens, stop_token_ids=stop, seed=number)
    return Request(f"r{number}", (number, number + 1), sampling, seed=number)


def record(rows: Rows, ids: list[int], version: int = 0) -> None:
    logprobs = np.array([-token / 2 for token in ids], np.float32)
    rows.record(rows.live(), np.array(ids), logprobs, version=version)


def test_the_lowest_free_rows_are_taken() -> None:
    rows = Rows(capacity=6)
    assert rows.take(4).tolist() == [0, 1, 2, 3]
    for row in range(4):
        rows.put(row, request(row), prompt_version=0)
    rows.free(2)
    rows.free(0)
    assert rows.num_live == 2
    assert rows.live().tolist() == [1, 3]
    assert rows.take(1).tolist() == [0]
    assert rows.take(2).tolist() == [2, 4]
    assert rows.num_live == 5


def test_what_ends_beside_a_request_leaves_its_numbers_alone() -> None:
    rows = Rows(capacity=4)
    for row in rows.take(4).tolist():
        rows.put(row, request(row), prompt_version=row)
    record(rows, [4, 5, 6, 7])
    rows.free(1)
    record(rows, [8, 10, 11])
    (row,) = rows.take(1).tolist()
    rows.put(row, request(9, max_new_tokens=30), prompt_version=5)
    record(rows, [12, 13, 14, 15])
    assert [rows.answer(row).tolist() for row in range(4)] == [
        [4, 8, 12],
        [13],
        [6, 10, 14],
        [7, 11, 15],
    ]
    assert [rows.required(row).seed for row in range(4)] == [0, 9, 2, 3]
    assert rows.completion(1, "length").prompt_version == 5
    rows.free(3)
    with pytest.raises(AssertionError, match="row 3 is free"):
        rows.required(3)


def test_a_completion_holds_what_was_recorded_for_its_row() -> None:
    rows = Rows(capacity=2)
    for row in rows.take(2).tolist():
        rows.put(row, request(row), prompt_version=4)
    record(rows, [10, 20], version=4)
    record(rows, [11, 21], version=5)
    found = rows.completion(1, "length")
    assert found.tokens == (20, 21)
    assert found.logprobs == (-10.0, -10.5)
    assert found.versions == (4, 5)
    assert found.prompt_version == 4
    assert rows.newest[:2].tolist() == [11, 21]
    assert rows.answer(0).tolist() == [10, 11]


def test_stop_ids_belong_to_their_request_only() -> None:
    rows = Rows(capacity=3)
    rows.take(3)
    rows.put(0, request(0, stop=(5,)), prompt_version=0)
    rows.put(1, request(1), prompt_version=0)
    rows.put(2, request(2, stop=(7, 8, 9)), prompt_version=0)
    live = rows.live()
    assert rows.hit_stop_id(live, np.array([5, 5, 5])).tolist() == [True, False, False]
    assert rows.hit_stop_id(live, np.array([9, 9, 9])).tolist() == [False, False, True]
    rows.free(2)
    assert rows.take(1).tolist() == [2]
    rows.put(2, request(3), prompt_version=0)
    assert not rows.hit_stop_id(live, np.array([7, 8, 9])).any()
