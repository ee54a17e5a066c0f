"""Stand-ins for hardware and slow parts, shared by tests."""

import asyncio
from collections.abc import Callable, Sequence

from parity.engines.engine import Engine, EngineCapabilities, EngineStats
from parity.types import (
    Answer,
    Completion,
    Episode,
    FinishReason,
    Group,
    RewardResult,
    Sampling,
    Scored,
    Task,
)


def task(index: int = 0, *, tokens: tuple[int, ...] = (5, 6, 7), answer: str = "x") -> Task:
    return Task(task_id=f"task/{index}", prompt=f"prompt {index}", answer=answer, tokens=tokens)


def completion(*tokens: int, version: int = 0, finish_reason: FinishReason = "stop") -> Completion:
    return Completion(
        tokens=tokens,
        logprobs=(-0.5,) * len(tokens),
        versions=(version,) * len(tokens),
        finish_reason=finish_reason,
    )


def episode(
    owner: Task,
    *response: int,
    reward: RewardResult = Scored(1.0),  # noqa: B008
    version: int = 0,
    finish_reason: FinishReason = "stop",
) -> Episode:
    num_prompt, num_new = len(owner.tokens), len(response)
    return Episode(
        episode_id="episode",
        task=owner,
        tokens=owner.tokens + response,
        loss_mask=(False,) * num_prompt + (True,) * num_new,
        logprobs=(0.0,) * num_prompt + (-0.5,) * num_new,
        versions=(-1,) * num_prompt + (version,) * num_new,
        response="".join(map(str, response)),
        finish_reason=finish_reason,
        reward=reward,
    )


def group(index: int, rewards: Sequence[RewardResult], *, version: int = 0) -> Group:
    owner = task(index)
    episodes = tuple(episode(owner, 8, 9, reward=reward, version=version) for reward in rewards)
    return Group(task=owner, episodes=episodes, index=index)


class FunctionGrader:
    """Grades with a plain function, in this process."""

    def __init__(self, function: Callable[[Answer], RewardResult]) -> None:
        self._function = function
        self.num_calls = 0

    async def grade(self, answers: Sequence[Answer], *, alone: bool = False) -> list[RewardResult]:
        self.num_calls += len(answers)
        return [self._function(answer) for answer in answers]


class ScriptedEngine(Engine):
    """An engine without a model: each request ends when the test says so."""

    def __init__(self, answer: Callable[[tuple[int, ...], Sampling], Completion] | None = None):
        self._answer = answer
        self._version = 0
        self.requests: dict[str, asyncio.Future[Completion]] = {}
        self.samplings: list[Sampling] = []
        self.commits: list[int] = []

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(updates_in_flight=True, is_seeded=True)

    @property
    def version(self) -> int:
        return self._version

    @property
    def max_length(self) -> int:
        return 1000

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self.requests))

    async def generate(self, tokens, sampling, *, request_id=None) -> Completion:
        self.samplings.append(sampling)
        if self._answer is not None:
            return self._answer(tokens, sampling)
        future = asyncio.get_running_loop().create_future()
        self.requests[str(request_id)] = future
        try:
            return await future
        finally:
            del self.requests[str(request_id)]

    def finish_all(self) -> None:
        for future in self.requests.values():
            if not future.done():
                future.set_result(completion(9, 1, version=self._version))

    async def abort(self, request_id: str) -> None:
        future = self.requests.get(request_id)
        if future is not None and not future.done():
            future.set_result(completion(9, version=self._version, finish_reason="abort"))

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def drain(self) -> None: ...

    async def begin_load(self, manifest) -> None: ...

    async def load(self, tensors) -> None: ...

    async def commit_load(self, version: int) -> None:
        self.commits.append(version)
        self._version = version

    async def abort_load(self, reason: str) -> None: ...

    async def close(self) -> None: ...
