"""Where requests go: least in flight, fewest tokens, siblings together within a bound."""

import asyncio
from collections import Counter

from fake_engines import FakeEngine, run_jumping
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.engines.config import RouterConfig
from parity.engines.pool import balance
from parity.engines.pool.balance import Balance, conversation_of, least_busy
from parity.engines.pool.replica import Call, Replica
from parity.engines.router import Router
from parity.types import Sampling

SAMPLING = Sampling(max_new_tokens=8)


def replicas(*in_flight: int) -> list[Replica]:
    found = []
    for number, count in enumerate(in_flight):
        replica = Replica(f"r{number}", FakeEngine())
        replica.enter()
        replica.calls = {Call(f"{n}", (1,), SAMPLING) for n in range(count)}
        found.append(replica)
    return found


def test_the_least_busy_replica_is_chosen_and_among_equals_the_one_that_served_least() -> None:
    pool = replicas(3, 1, 2)
    assert least_busy(pool) is pool[1]
    pool = replicas(1, 1, 1)
    assert least_busy(pool) is pool[0]
    pool[0].tokens_served, pool[1].tokens_served, pool[2].tokens_served = 9, 7, 8
    assert least_busy(pool) is pool[1]


def test_a_conversation_stays_until_its_replica_is_overloaded_and_then_moves_for_good() -> None:
    pool = replicas(0, 0)
    choice = Balance(slack=2)
    assert choice.choose(pool, "a") is pool[0]
    pool[0].calls = {Call("1", (1,), SAMPLING)}
    assert choice.choose(pool, "a") is pool[0]
    assert choice.choose(pool, "b") is pool[1]
    pool[0].calls.add(Call("2", (1,), SAMPLING))
    assert choice.choose(pool, "a") is pool[1]
    pool[0].calls.clear()
    assert choice.choose(pool, "a") is pool[1]


def test_a_conversation_whose_replica_left_goes_to_another_one() -> None:
    pool = replicas(0, 5)
    choice = Balance(slack=16)
    assert choice.choose(pool, "a") is pool[0]
    pool[0].leave("gone")
    assert choice.choose(pool[1:], "a") is pool[1]


def test_conversations_are_forgotten_oldest_first(monkeypatch) -> None:
    monkeypatch.setattr(balance, "MAX_CONVERSATIONS", 2)
    pool = replicas(0, 1)
    choice = Balance(slack=5)
    assert choice.choose(pool, "a") is pool[0]
    choice.choose(pool, "b")
    assert choice.choose(pool, "a") is pool[0]
    choice.choose(pool, "c")  # forgets b, which asked longest ago
    pool[1].calls.clear()
    pool[0].calls = {Call("1", (1,), SAMPLING)}
    assert choice.choose(pool, "a") is pool[0]
    assert choice.choose(pool, "b") is pool[1]
    assert len(choice._homes) == 2


def test_an_id_with_a_slash_names_the_conversation_and_else_the_prompt_does() -> None:
    assert conversation_of("12/3", (1,)) == conversation_of("12/4", (2,)) == "12"
    assert conversation_of("request-1", (1, 2)) == conversation_of("request-2", (1, 2))
    assert conversation_of("request-1", (1, 2)) != conversation_of("request-1", (1, 3))


@settings(max_examples=200, deadline=None)
@given(
    count=st.integers(1, 5),
    slack=st.integers(0, 6),
    moves=st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=60),
)
def test_stickiness_never_adds_to_a_replica_that_has_slack_more_than_the_least_busy(
    count: int, slack: int, moves: list[tuple[int, bool]]
) -> None:
    pool = replicas(*[0] * count)
    choice = Balance(slack=slack)
    open_calls: list[tuple[Replica, Call]] = []
    for key, ends in moves:
        if ends and open_calls:
            replica, call = open_calls.pop(key % len(open_calls))
            replica.calls.discard(call)
            continue
        least = min(replica.in_flight for replica in pool)
        chosen = choice.choose(pool, key)
        assert chosen.in_flight == least or chosen.in_flight < least + slack
        call = Call("x", (key,), SAMPLING)
        chosen.calls.add(call)
        open_calls.append((chosen, call))


def test_a_step_of_groups_keeps_siblings_together_and_loads_all_replicas_alike() -> None:
    async def step() -> tuple[list[FakeEngine], int]:
        engines = [FakeEngine(latency_s=1 + n / 10) for n in range(4)]
        router = Router({f"r{n}": engine for n, engine in enumerate(engines)})
        prompts = [(7, group) for group in range(64) for _ in range(8)]
        homes: dict[tuple[int, ...], set[int]] = {}

        async def one(number: int, tokens: tuple[int, ...]) -> None:
            await router.generate(tokens, SAMPLING, request_id=f"request-{number}")
            served = [n for n, e in enumerate(engines) if f"request-{number}" in e.ended]
            homes.setdefault(tokens, set()).update(served)

        await asyncio.gather(*(one(n, tokens) for n, tokens in enumerate(prompts)))
        await router.close()
        return engines, sum(len(found) > 1 for found in homes.values())

    engines, num_parted = run_jumping(step())
    assert [len(engine.began) for engine in engines] == [128] * 4
    assert num_parted == 0


def test_without_stickiness_equal_replicas_are_used_alike_and_a_slow_one_less() -> None:
    async def flow() -> Counter[int]:
        engines = [FakeEngine(latency_s=1.0), FakeEngine(latency_s=1.0), FakeEngine(latency_s=4.0)]
        router = Router(
            {f"r{n}": engine for n, engine in enumerate(engines)}, RouterConfig(sticky_slack=0)
        )

        async def client() -> None:
            for _ in range(40):
                await router.generate((1,), SAMPLING)

        await asyncio.gather(*(client() for _ in range(12)))
        await router.close()
        return Counter({n: len(engine.began) for n, engine in enumerate(engines)})

    used = run_jumping(flow())
    assert sum(used.values()) == 480
    assert abs(used[0] - used[1]) <= 0.1 * used[0]
    assert used[2] < 0.5 * used[0]


def test_a_replica_that_joins_gets_its_share_of_conversations_that_had_a_home() -> None:
    async def join() -> None:
        one, two = FakeEngine(), FakeEngine()
        router = Router({"one": one}, RouterConfig(sticky_slack=16))
        prompts = [(n,) for n in range(8)]
        await asyncio.gather(*(router.generate(each, SAMPLING) for each in prompts))
        await router.add("two", two)
        await asyncio.gather(*(router.generate(each, SAMPLING) for each in prompts))
        assert (len(one.began), len(two.began)) == (8 + 4, 4)
        await router.close()

    run_jumping(join())
