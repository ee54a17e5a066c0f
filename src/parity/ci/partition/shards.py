"""Spreads weighted items over equal shards so that the longest shard is short.

Used by the plan. The problem is makespan minimisation on identical machines (P||Cmax). Longest
processing time first is at most 4/3 - 1/(3m) of the best possible (Graham 1969); moves and swaps
then only shorten the longest shard, and small cases are searched to the end, within a bound.
Invariants: disjoint, complete, and equal for equal input, whatever its order.
"""

from collections.abc import Mapping, Sequence

EXACT_ITEMS = 16
EXACT_NODES = 200_000  # beyond, the best found so far stands, which the heuristics made
IMPROVING_ROUNDS = 200
TICKS_PER_S = 1000  # whole milliseconds: sums don't depend on their order


def partition(weights_s: Mapping[str, float], count: int) -> list[list[str]]:
    """`count` lists of keys, each longest first (then by name); some empty if keys are few."""
    assert count >= 1, f"{count} shards"
    ticks = {key: max(1, round(weight * TICKS_PER_S)) for key, weight in weights_s.items()}
    keys = sorted(ticks, key=lambda key: (-ticks[key], key))
    sizes = [ticks[key] for key in keys]
    places = longest_first(sizes, count)
    improve(sizes, places, count)
    if len(sizes) <= EXACT_ITEMS and makespan(sizes, places, count) > lower_bound(sizes, count):
        places = _Exact(sizes, count, places).search()
    shards: list[list[str]] = [[] for _ in range(count)]
    for key, place in zip(keys, places, strict=True):
        shards[place].append(key)
    return _in_order(shards)


def _in_order(shards: list[list[str]]) -> list[list[str]]:
    """Shards by their first name in the alphabet, empty ones last: stable when times change."""
    return sorted(shards, key=lambda shard: (not shard, min(shard, default="")))


def lower_bound(sizes: Sequence[int], count: int) -> int:
    """No partition is shorter than this: the mean, the longest item, and piles.

    Of the `k * count + 1` longest items some shard holds `k + 1`, at best the shortest of them.
    """
    if not sizes:
        return 0
    longest = sorted(sizes, reverse=True)
    piles = (sum(longest[at - at // count : at + 1]) for at in range(0, len(longest), count))
    return max(-(-sum(sizes) // count), *piles)


def makespan(sizes: Sequence[int], places: Sequence[int], count: int) -> int:
    """The load of the longest shard."""
    return max(_loads(sizes, places, count))


def longest_first(sizes: Sequence[int], count: int) -> list[int]:
    """The shard of each item, given longest first: always the shard with the least load."""
    loads = [0] * count
    places: list[int] = []
    for size in sizes:
        place = loads.index(min(loads))
        loads[place] += size
        places.append(place)
    return places


def improve(sizes: Sequence[int], places: list[int], count: int) -> None:
    """Move or swap items of the longest shard, as long as that makes it shorter; in place."""
    loads = _loads(sizes, places, count)
    for _ in range(IMPROVING_ROUNDS):
        longest = loads.index(max(loads))
        shortest = loads.index(min(loads))
        gap = loads[longest] - loads[shortest]
        change = _best_change(sizes, places, longest, shortest, gap)
        if change is None:
            return
        out, back = change
        places[out] = shortest
        moved = sizes[out]
        if back is not None:
            places[back] = longest
            moved -= sizes[back]
        loads[longest] -= moved
        loads[shortest] += moved


def _best_change(
    sizes: Sequence[int], places: Sequence[int], longest: int, shortest: int, gap: int
) -> tuple[int, int | None] | None:
    """The item to move, and the one to take back (or None), nearest to half the gap."""
    here = [at for at, place in enumerate(places) if place == longest]
    there: list[int | None] = [None]
    there += [at for at, place in enumerate(places) if place == shortest]
    best: tuple[int, int | None] | None = None
    best_miss = gap  # a change by 0 or by the whole gap gains nothing
    for out in here:
        target = 2 * sizes[out] - gap
        for back in _near(there, sizes, target):
            miss = abs(target - 2 * (sizes[back] if back is not None else 0))
            if miss < best_miss:
                best, best_miss = (out, back), miss
    return best


def _near(there: Sequence[int | None], sizes: Sequence[int], target: int) -> list[int | None]:
    """None (a move), and the items of the shorter shard around half of `target`."""
    low, high = 1, len(there)
    while low < high:  # sizes fall along `there`
        middle = (low + high) // 2
        at = there[middle]
        if at is not None and 2 * sizes[at] > target:
            low = middle + 1
        else:
            high = middle
    return [None, *there[max(1, low - 1) : low + 1]]


def _loads(sizes: Sequence[int], places: Sequence[int], count: int) -> list[int]:
    loads = [0] * count
    for size, place in zip(sizes, places, strict=True):
        loads[place] += size
    return loads


class _Exact:
    """Depth-first search with bounds; keeps the best, which begins as the heuristics' answer."""

    def __init__(self, sizes: Sequence[int], count: int, places: Sequence[int]) -> None:
        self._sizes = sizes
        self._count = count
        self._best = list(places)
        self._best_span = makespan(sizes, places, count)
        self._bound = lower_bound(sizes, count)
        self._nodes = 0
        self._loads = [0] * count
        self._places: list[int] = []

    def search(self) -> list[int]:
        """The shard of each item, best possible where the search came to its end."""
        self._place(0)
        return self._best

    def _place(self, at: int) -> None:
        if at == len(self._sizes):
            self._best, self._best_span = list(self._places), max(self._loads)
            return
        self._nodes += 1
        tried: set[int] = set()
        for shard in range(self._count):
            load = self._loads[shard]
            is_done = self._best_span <= self._bound or self._nodes > EXACT_NODES
            if is_done:
                return
            if load in tried or load + self._sizes[at] >= self._best_span:
                continue  # equal loads are the same choice
            tried.add(load)
            self._loads[shard] += self._sizes[at]
            self._places.append(shard)
            self._place(at + 1)
            self._places.pop()
            self._loads[shard] -= self._sizes[at]
