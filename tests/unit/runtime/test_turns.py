"""Trainer and engines take turns: in this order, with what each process says that it holds."""

import asyncio
from dataclasses import replace

import pytest
from fake_engines import USUAL, FakeEngine

from parity.errors import EngineLostError, UnsupportedError
from parity.runtime.inline import InlineRuntime
from parity.runtime.turns import TakingTurns


class Resting:
    """A trainer that writes down what is asked of it."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def offload(self, *, keeps_weights: bool = False) -> None:
        self._told.append("offload moments" if keeps_weights else "offload")

    def reload(self) -> None:
        self._told.append("reload")

    def held_bytes(self) -> int:
        return 7


class Sleeper(FakeEngine):
    """Writes down when it sleeps and wakes."""

    told: list[str]
    held: int | None = 5  # None: its process is gone
    is_lost = False

    async def sleep(self, level=1) -> None:
        self.told.append(f"sleep {level}")

    async def wake(self) -> None:
        self.told.append("wake")

    async def held_bytes(self) -> int:
        if self.held is None:
            raise EngineLostError("gone")
        return self.held


def sleeper(told: list[str]) -> Sleeper:
    engine = Sleeper(can=replace(USUAL, can_sleep=True))
    engine.told = told
    return engine


class Memory:
    """Of both roles."""

    def __init__(self, of_engines: int | None) -> None:
        self._of_engines = of_engines

    async def of_engines(self) -> int | None:
        return self._of_engines

    def of_trainer(self) -> int:
        return 7


@pytest.mark.parametrize("of_engines", [5, None])
def test_a_step_and_a_publication_are_between_sleep_and_wake(of_engines: int | None):
    told: list[str] = []

    async def scenario() -> dict[str, float]:
        turns = TakingTurns(
            InlineRuntime(trainer_threads=1),
            engines=[sleeper(told)],
            trainer=Resting(told),
            deadline_s=60,
            memory=Memory(of_engines),
        )
        await turns.engines_turn()
        told.clear()
        await turns.in_trainer(lambda: told.append("step"))
        told.append("publish")
        metrics = await turns.engines_turn()
        await turns.close()
        return metrics

    metrics = asyncio.run(scenario())
    assert told == ["sleep 2", "reload", "step", "offload moments", "publish", "offload", "wake"]
    sizes = {name: value for name, value in metrics.items() if name.startswith("device/")}
    trainer = {"device/trainer_turn_bytes": 7.0, "device/after_trainer_turn_bytes": 7.0}
    engine = {"device/engine_turn_bytes": 5.0, "device/after_engine_turn_bytes": 5.0}
    assert sizes == (trainer if of_engines is None else {**trainer, **engine})


def test_a_side_that_cannot_let_go_is_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"FakeEngine, str can't give its device up.*apart"):
        TakingTurns(
            InlineRuntime(trainer_threads=1),
            engines=[FakeEngine()],
            trainer="a trainer",
            deadline_s=60,
            memory=Memory(5),
        )


def test_of_each_role_the_process_that_holds_most_counts_and_the_dead_do_not():
    pytest.importorskip("ray")
    from parity.runtime.ray.build import RoleMemory

    one, other, gone, dying = (sleeper([]) for _ in range(4))
    other.held, dying.held, gone.is_lost = 9, None, True
    gone.held = 100

    async def scenario() -> None:
        memory = RoleMemory(Resting([]), [one, other, gone, dying])
        assert await memory.of_engines() == 9
        assert await RoleMemory(Resting([]), [gone, dying]).of_engines() is None
        assert memory.of_trainer() == 7

    asyncio.run(scenario())
