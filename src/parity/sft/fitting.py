"""Supervised fine-tuning: the source's own answers, in the styles that the run file mixes.

    step     draws                     does
    draw     batch_size tasks          answer -> style -> ids, prompt masked
    train    the samples               one optimizer step of the same trainer as RL

Used by `parity sft`, by which also the quickstart's warm checkpoint is built. Evaluation
before the first and after the last step, on the same held-out tasks as RL. The style of an
example is a function of the seed and its number, so a run can be repeated exactly.
"""

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from parity.algorithms.objective import SftObjective
from parity.config.schema import AnswerStyle, SftConfig
from parity.errors import DataError
from parity.evaluation import Evaluation, longest_grading_s
from parity.models.rendering import Renderer
from parity.observe.dashboard.display import Display
from parity.observe.devices import DeviceMetrics
from parity.observe.timer import PhaseTimer
from parity.observe.tracking import Trackers
from parity.parts import Parts
from parity.rollouts.group import why_unscored
from parity.runtime.inline import InlineRuntime
from parity.supervise import limits
from parity.tasks.stream import TaskStream
from parity.training.trainer import Trainer
from parity.types import NO_VERSION, Sample, Task
from parity.weights.direct import DirectTransfer
from parity.weights.transfer import Weights


class Fitting:
    """One SFT run, wired."""

    def __init__(
        self,
        config: SftConfig,
        *,
        parts: Parts,
        runtime: InlineRuntime,
        trackers: Trackers,
        display: Display,
        timer: PhaseTimer,
    ) -> None:
        self.config = config
        self.parts = parts
        self.runtime = runtime
        self.trackers = trackers
        self.display = display
        self.timer = timer
        self.devices: DeviceMetrics | None = None
        self.is_stopping = False
        self.is_interrupted = False
        self.stop_reason = ""
        self.started = time.monotonic()
        self.trained_tokens = 0.0
        assert parts.model is not None, "supervised training holds its model itself"
        self.trainer = Trainer(
            parts.model,
            objective=SftObjective(),
            optimizer=config.optimizer,
            schedule=config.schedule,
            config=config.trainer,
            total_steps=config.steps,
            temperature=1.0,
            device=parts.device,
        )

    async def run(self) -> tuple[Evaluation, Evaluation]:
        """Train; what the evaluations before and after found."""
        first = await self._evaluate()
        self.display.activity("training")
        examples = self._examples()
        self.started = time.monotonic()
        while self.trainer.step_index < self.config.steps and not self.is_stopping:
            drawn = [next(examples) for _ in range(self.config.batch_size)]
            await self._step(drawn)
        transfer = DirectTransfer([self.parts.engine])
        weights = Weights(self.trainer.named_weights(), self.trainer.aliases())
        switch = self.parts.setup.generation.switch
        with limits.publication(self.config.supervise, 1):
            await transfer.publish(weights, version=1, switch=switch)
        return first, await self._evaluate()

    @property
    def longest_grading_s(self) -> float:
        """How long an evaluation may take without a token."""
        config = self.config
        return longest_grading_s(config.eval, config.grader, self.parts.evaluator.max_retries)

    def export(self, path: Path) -> None:
        """Write the fitted model as a Hugging Face folder."""
        self.trainer.export(path, self.parts.tokenizer)

    async def _step(self, samples: Sequence[Sample]) -> None:
        due = limits.step(self.config.supervise, self.trainer.step_index + 1)
        with self.timer.phase("train"), due:
            report = await self.runtime.in_trainer(lambda: self.trainer.step(samples))
        times = self.timer.step()
        self.trained_tokens += report.metrics["train/tokens"]
        metrics = dict(report.metrics)
        metrics |= {name: value for name, value in times.metrics().items() if value is not None}
        if times.elapsed_s > 0:
            metrics["time/tokens_per_s"] = report.metrics["train/tokens"] / times.elapsed_s
        metrics |= {} if self.devices is None else self.devices.latest()
        self.trackers.log(report.step, metrics)
        self.display.step(report.step, metrics)

    async def _evaluate(self) -> Evaluation:
        self.display.activity("evaluating")
        due = limits.evaluation(
            self.config.supervise,
            self.parts.engine,
            longest_silence_s=self.longest_grading_s,
        )
        with self.timer.phase("eval"), due:
            evaluation = await self.parts.evaluator.run()
        if evaluation.accuracy is None:
            reason = why_unscored(evaluation.episodes)
            self.display.message(f"no answer of the evaluation could be graded (last: {reason})")
        self.display.evaluation(self.trainer.step_index, evaluation.metrics)
        self.trackers.log(self.trainer.step_index, evaluation.metrics)
        return evaluation

    def _examples(self) -> Iterator[Sample]:
        source, indices = self.parts.train_tasks
        stream = TaskStream(
            source,
            renderer=self.parts.renderer,
            prompts=self.config.prompts,
            seed=self.config.seed,
            first=indices.start,
            last=indices.stop,
        )
        for number, task in enumerate(stream):
            noise = random.Random(f"{self.config.seed}/{number}")
            try:
                sample = example(task, number, self.parts.renderer, self.config.answers, noise)
            except DataError as error:
                stream.refuse(error)
                continue
            yield sample


def example(
    task: Task, number: int, renderer: Renderer, styles: Sequence[AnswerStyle], noise: random.Random
) -> Sample:
    """The task with its answer, written in one of the styles; raises DataError without answer."""
    if task.answer is None:
        raise DataError(
            f"{task.task_id}: there is no answer to learn from; set tasks.answer_column to the "
            "column that holds it."
        )
    style = noise.choices(styles, weights=[style.weight for style in styles])[0]
    text = style.template.replace("{answer}", transformed(task.answer, style, noise))
    answer = renderer.encode_answer(task, text)
    num_prompt, num_answer = len(task.tokens), len(answer)
    total = num_prompt + num_answer
    return Sample(
        group=number,
        tokens=task.tokens + answer,
        loss_mask=(False,) * num_prompt + (True,) * num_answer,
        logprobs=(0.0,) * total,
        versions=(NO_VERSION,) * total,
        advantages=(0.0,) * total,
    )


def transformed(answer: str, style: AnswerStyle, noise: random.Random) -> str:
    """The answer as the style changes it; too short an answer stays as it is."""
    letters = list(answer)
    if style.transform == "reverse":
        letters.reverse()
    elif style.transform == "shuffle":
        noise.shuffle(letters)
    elif style.transform == "swap" and len(letters) > 1:
        place = noise.randrange(len(letters) - 1)
        letters[place], letters[place + 1] = letters[place + 1], letters[place]
    elif style.transform == "drop" and len(letters) > 1:
        del letters[noise.randrange(len(letters))]
    return "".join(letters)
