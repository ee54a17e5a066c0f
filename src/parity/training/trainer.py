"""The trainer of one device: samples in, new weights out.

    step      does                                        can fail with
    pack      samples -> micro-batches, global weights    DataError
    score     forward, objective, backward, per part      (whatever torch raises)
    check     loss and gradient are finite                TrainingError
    apply     clip, AdamW step at the step's rate

Up to `apply`, nothing of the model or the optimizer has changed: a refused step can be
looked at, and the weights are still those of the step before. `step_index` counts steps
taken, skipped ones included; it is the schedule's only clock. Calls come from one thread at
a time. One data set of one version may feed several steps: with `loss.old_logprobs=trainer`
the ratio is taken against the weights that begin each step, hence 1, by definition.
"""

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from parity.algorithms.objective import (
    Objective,
    ObjectiveTerms,
    PolicyObjective,
    TokenFields,
)
from parity.errors import ConfigError, TrainingError
from parity.models.parameters import aliases_of, named_weights
from parity.models.streaming import WeightStream
from parity.training import state
from parity.training.config import AdamWConfig, ScheduleConfig, TrainerConfig
from parity.training.forward import Scorer, prepare_model
from parity.training.layout import ModelCost
from parity.training.micro_batch import Batch, MicroBatch
from parity.training.optimizers import build_adamw, set_learning_rate
from parity.training.packing import Share, pack
from parity.training.parallel.ranks import Alone, Ranks
from parity.training.resting import Resting
from parity.training.schedules import learning_rate_share
from parity.training.sharing import sharing_fault
from parity.training.totals import Totals, batch_metrics
from parity.types import Sample, StepReport
from parity.weights.transfer import Weights

logger = logging.getLogger(__name__)


class Trainer:
    """Owns the weights, the optimizer and the place in the schedule."""

    def __init__(  # noqa: PLR0913 (each one is a section of the run file or a shared value)
        self,
        model: PreTrainedModel,
        *,
        objective: Objective,
        optimizer: AdamWConfig,
        schedule: ScheduleConfig,
        config: TrainerConfig,
        total_steps: int,
        temperature: float,
        device: torch.device,
        ranks: Ranks | None = None,
        rest_dir: Path | None = None,
        stream: WeightStream | None = None,
    ) -> None:
        """Take over `model`: it is moved to `device` in float32 and trained in place.

        Where the objective needs a reference, a frozen copy of `model` as it is now is kept;
        so pass the starting weights, also for a run that goes on from a checkpoint (`load`).

        Args:
            model: a causal language model.
            objective: what is minimised; says how token losses become one number.
            optimizer: the optimizer's section of the run file.
            schedule: the learning rate over steps.
            config: the trainer's section of the run file.
            total_steps: optimizer steps of the whole run, >= 1; the schedule's length.
            temperature: the sampling temperature, > 0.
            device: where everything is computed.
            ranks: the ranks that train together, each with the same model; None: this one alone.
            rest_dir: where the state of a CPU rests (`offload`); None: the system's folder for it.
            stream: the weights of a `model` that has no memory (meta device), for several ranks.
        """
        if not (math.isfinite(temperature) and temperature > 0.0):
            raise ConfigError(
                f"sampling.temperature is {temperature}; a policy can be trained at a temperature"
                " > 0 only. Set sampling.temperature=1.0."
            )
        prepare_model(model, gradient_checkpointing=config.gradient_checkpointing, device=device)
        self.model = model
        self.step_index = 0
        self._has_told_skipped = False
        self._objective, self._config = objective, config
        self._optimizer_config, self._schedule = optimizer, schedule
        self._total_steps = total_steps
        self._device = device
        self._ranks = ranks or Alone()
        self._cost = ModelCost.of(model, device=device)
        self._scorer = Scorer(model, config=config, temperature=temperature, device=device)
        self._reference = self._frozen(model, temperature) if objective.needs_reference else None
        self._ranks.shard(self._scorer, model=model)
        if stream is not None:
            self._fill(stream)
        self._optimizer = build_adamw(model.named_parameters(), optimizer)
        self._resting = Resting(device, folder=rest_dir)
        self._shares_prefixes = None if config.prefix_sharing == "auto" else False
        # The contract of a policy loss: 0 where the advantage is 0, in value and gradient.
        self._skips_zero_advantage = isinstance(objective, PolicyObjective) and not (
            objective.needs_reference or objective.needs_entropy_gradient
        )

    def _frozen(self, model: PreTrainedModel, temperature: float) -> Scorer:
        """The reference: a copy of the starting model, spread like it."""
        frozen = copy.deepcopy(model).requires_grad_(False).eval()
        scorer = Scorer(frozen, config=self._config, temperature=temperature, device=self._device)
        self._ranks.shard(scorer, model=frozen)
        return scorer

    def _fill(self, stream: WeightStream) -> None:
        """Give the spread models memory and weights."""
        for scorer in (self._scorer, self._reference):
            if scorer is not None:
                self._ranks.allocate(scorer)
                stream.fill(scorer.model)
                scorer.settle()
                self._ranks.rest(scorer)  # or the optimizer would be given whole parameters

    def step(self, samples: Sequence[Sample]) -> StepReport:
        """Take one optimizer step on `samples`, the whole batch, in any order.

        A batch in which no token can have a gradient (nothing trained, or every advantage 0
        under an objective that needs one) leaves weights and optimizer alone and is reported
        with `is_applied=False`; the step is taken all the same.

        Raises TrainingError where loss or gradient aren't finite; nothing has changed then.
        """
        begin_s = time.perf_counter()
        self._resting.check("a step")
        batch = self._pack(samples)
        rate = self._optimizer_config.lr * learning_rate_share(
            self.step_index, self._schedule, self._total_steps
        )
        metrics = batch_metrics(batch)
        is_applied = any(part.needs_gradient for part in batch.micro_batches)
        try:
            totals = self._accumulate(batch)
            metrics |= totals.metrics
            self._check_loss(totals)
            if is_applied:
                metrics["train/grad_norm"] = self._apply(rate)
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        self.step_index += 1
        if not is_applied:
            self._tell_skipped(batch)
        metrics["train/learning_rate"] = rate
        metrics["train/skipped_steps"] = float(not is_applied)
        metrics["train/step_s"] = time.perf_counter() - begin_s
        return StepReport(step=self.step_index, metrics=metrics, is_applied=is_applied)

    def _tell_skipped(self, batch: Batch) -> None:
        """A warning the first time; the metric counts the others."""
        logger.log(
            logging.INFO if self._has_told_skipped else logging.WARNING,
            "step %d left the weights alone: no token of its %d samples has a gradient, as when"
            " all rewards of a group are equal (train/skipped_steps counts such steps)",
            self.step_index,
            batch.num_samples,
        )
        self._has_told_skipped = True

    def logprobs_of(self, samples: Sequence[Sample]) -> list[Tensor]:
        """Per sample the log-probs [L] under the current weights, 0.0 where not trained.

        The tokens are laid out as `step` would, so both see the same numbers. Every rank must
        ask, and each gets all of them.
        """
        if not samples:
            return []
        self._resting.check("a score")
        batch = self._pack(samples)
        result = [torch.zeros(len(sample.tokens)) for sample in samples]
        for part in batch.micro_batches:
            with torch.no_grad():
                logprobs = self._scorer.scores(part.to(self._device)).logprobs.cpu()
            for index, values in zip(*_by_sample(part, logprobs), strict=True):
                result[index][torch.tensor(samples[index].loss_mask)] = values
        whole = self._ranks.add(torch.cat(result))  # each sample was scored by one rank
        return list(whole.split([len(values) for values in result]))

    def named_weights(self) -> list[tuple[str, Tensor]]:
        """The live weights under their Hugging Face names, each storage once.

        They change with the next step: copy before then.
        """
        return [(name, self._ranks.whole(tensor)) for name, tensor in self.weights().tensors]

    def aliases(self) -> tuple[tuple[str, str], ...]:
        """Tied weights: (name that is left out, name that is given)."""
        return aliases_of(self.model)

    def weights(self) -> Weights:
        """What a publication sends, sharded as it is held; it changes with the next step."""
        self._resting.check("the weights", needs_state=False)
        return Weights(named_weights(self.model), self.aliases())

    def save(self, path: Path) -> None:
        """Write everything that `load` needs into the folder `path`."""
        self._resting.check("a checkpoint")
        state.save(path, model=self.model, tensors=self._tensors(), ranks=self._ranks)

    def stage(self) -> Callable[[Path], None]:
        """Copy what `save` would write to the host; the result writes it into a folder.

        It may be called once, in any thread, while this trainer goes on; all ranks call theirs.
        """
        self._resting.check("a checkpoint")
        return state.stage(model=self.model, tensors=self._tensors(), ranks=self._ranks)

    def load(self, path: Path) -> None:
        """Go on from what `save` wrote, bit for bit; the reference stays as it is.

        Raises CheckpointError where the folder is of another model or optimizer.
        """
        self._resting.check("a checkpoint")
        tensors = self._tensors()
        state.load(path, model=self.model, tensors=tensors, ranks=self._ranks)
        self.step_index = int(tensors["step_index"])
        state.set_random_state(tensors, self._device)

    def export(self, path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write a plain Hugging Face folder: weights, config and tokenizer; all ranks together."""
        self._resting.check("an export", needs_state=False)
        state.export(path, self.model, tokenizer, ranks=self._ranks)

    def offload(self, *, keeps_weights: bool = False) -> None:
        """Give the device's memory up until `reload`; the weights may stay, for a publication.

        Raises TrainingError, with everything in place, where it can't be put aside.
        """
        for scorer in (self._scorer, self._reference):
            if scorer is not None:
                self._ranks.rest(scorer)
        moments = (each for kept in self._optimizer.state.values() for each in kept.values())
        gradients = (p.grad for p in self.model.parameters() if p.grad is not None)
        gone = () if keeps_weights else (self._scorer, self._reference)
        weights = (t for m in gone if m is not None for t in (*m.parameters(), *m.buffers()))
        self._resting.offload(weights=weights, state=(*moments, *gradients))

    def reload(self) -> None:
        """Be as before `offload`, bit for bit.

        Raises TrainingError where memory is short; all of it rests on and can be reloaded later.
        """
        self._resting.reload()

    def _pack(self, samples: Sequence[Sample]) -> Batch:
        if self._shares_prefixes is None:
            self._shares_prefixes = self._may_share_prefixes()
        return pack(
            samples,
            aggregation=self._objective.aggregation,
            max_tokens=self._config.max_tokens_per_micro_batch,
            prefix_sharing=self._shares_prefixes,
            cost=self._cost,
            skips_zero_advantage=self._skips_zero_advantage,
            share=Share(self._ranks.rank, self._ranks.size),
        )

    def _may_share_prefixes(self) -> bool:
        """Try this very model; a refusal is logged once, with its reason."""
        is_low_precision = self._config.dtype != "float32"
        fault = sharing_fault(self._scorer, is_low_precision=is_low_precision, device=self._device)
        if fault is not None:
            logger.warning("event=prefix_sharing_off reason=%s", fault)
        return fault is None

    def _accumulate(self, batch: Batch) -> Totals:
        """Forward and backward over all micro-batches; gradients add up in the parameters."""
        terms: list[ObjectiveTerms] = []
        for part in batch.micro_batches:
            with torch.set_grad_enabled(part.needs_gradient):
                terms.append(self._terms(part.to(self._device)))
            if part.needs_gradient:
                terms[-1].loss.backward()
        return Totals.of(terms, self._ranks)

    def _terms(self, part: MicroBatch) -> ObjectiveTerms:
        scores = self._scorer.scores(
            part, needs_entropy_gradient=self._objective.needs_entropy_gradient
        )
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference = self._reference.scores(part).logprobs
        fields = TokenFields(
            logprobs=scores.logprobs,
            rollout_logprobs=part.rollout_logprobs,
            advantages=part.advantages,
            weights=part.weights,
            sample_index=part.sample_index,
            entropy=scores.entropy,
            reference_logprobs=reference,
        )
        return self._objective(fields)

    def _check_loss(self, totals: Totals) -> None:
        wrong = [i for i, loss in enumerate(totals.losses) if not math.isfinite(loss)]
        if not math.isfinite(totals.loss) or totals.num_not_finite:
            raise TrainingError(
                f"step {self.step_index + 1} is refused: the loss is {totals.loss}, and"
                f" {totals.num_not_finite} of {totals.num_tokens} trained tokens have a log-prob,"
                f" advantage or entropy that isn't finite (loss not finite in micro-batches"
                f" {wrong[:8]} of {len(totals.losses)}); weights and optimizer are unchanged."
                " Look at the batch's log-probs and advantages, or lower optimizer.lr."
            )

    def _apply(self, rate: float) -> float:
        """Check, clip, step; returns the gradient norm before clipping."""
        gradients = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        norm = self._ranks.whole(get_total_norm(gradients.values()))
        norm_value = float(norm)
        if not math.isfinite(norm_value):
            raise TrainingError(self._gradient_fault(gradients, norm_value))
        if self._config.max_grad_norm is not None:
            trained = (p for p in self.model.parameters() if p.grad is not None)
            clip_grads_with_norm_(trained, self._config.max_grad_norm, norm)
        set_learning_rate(self._optimizer, rate)
        self._optimizer.step()
        return norm_value

    def _gradient_fault(self, gradients: Mapping[str, Tensor], norm: float) -> str:
        counts = {name: int((~g.isfinite()).sum()) for name, g in gradients.items()}
        wrong = [f"{name} ({count})" for name, count in counts.items() if count]
        where = (
            f"{len(wrong)} of {len(counts)} parameters have entries that aren't finite:"
            f" {', '.join(wrong[:5])}"
            if wrong
            else "every entry is finite, but their squares overflow"
        )
        return (
            f"step {self.step_index + 1} is refused: the gradient norm is {norm}; {where}; weights"
            " and optimizer are unchanged. Lower optimizer.lr or look at the batch's advantages."
        )

    def _tensors(self) -> dict[str, Tensor]:
        """The state beside the weights: optimizer moments (live), step, random generators."""
        return {
            **state.optimizer_tensors(self.model, self._optimizer),
            "step_index": torch.tensor(self.step_index),
            **state.random_state(self._device),
        }


def _by_sample(part: MicroBatch, values: Tensor) -> tuple[list[int], Sequence[Tensor]]:
    """`values` [T] cut into one tensor per sample, and which samples these are."""
    samples, counts = part.sample_index.unique_consecutive(return_counts=True)
    return samples.tolist(), values.split(counts.tolist())
