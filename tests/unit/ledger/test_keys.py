"""Sampling seeds are a pure function of (seed, task, sibling, turn, attempt)."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from parity.ledger.keys import sampling_seed, sibling_seeds

words = st.integers(-(2**63), 2**63 - 1)
small = st.integers(0, 2**40)


@given(words, small, st.integers(1, 40), small, small)
def test_a_sibling_has_the_same_seed_in_a_group_of_any_size(seed, task, size, turn, attempt):
    place = {"task": task, "turn": turn, "attempt": attempt}
    seeds = sibling_seeds(seed, num_siblings=size, **place)
    assert seeds == sibling_seeds(seed, num_siblings=size + 5, **place)[:size]
    assert seeds[-1] == sampling_seed(seed, sibling=size - 1, **place)
    assert all(0 <= value < 2**63 for value in seeds)
    assert len(set(seeds)) == size


@given(st.tuples(words, small, small, small), st.tuples(words, small, small, small))
def test_every_part_of_the_key_changes_every_seed(one, other):
    def seeds(key):
        return sibling_seeds(key[0], task=key[1], turn=key[2], attempt=key[3], num_siblings=4)

    assert (one == other) == (seeds(one) == seeds(other))
    assert one == other or not set(seeds(one)) & set(seeds(other))


def test_seeds_are_spread_over_all_their_bits():
    values = [v for task in range(500) for v in sibling_seeds(1, task=task, num_siblings=8)]
    for bit in range(63):
        share = sum(value >> bit & 1 for value in values) / len(values)
        assert 0.45 < share < 0.55, f"bit {bit} is set in {share:.0%}"


def test_seeds_are_the_same_in_every_process_and_release():
    code = "from parity.ledger.keys import sampling_seed as s; print(s(7, task=3, sibling=2))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) == sampling_seed(7, task=3, sibling=2) == RECORDED


RECORDED = 2317844975841737833
