"""The learning rate as a pure function of the optimizer step; used by `trainer.py`.

Nothing is counted here: the trainer's `step_index` is the only clock, so a resumed run and
an unbroken one use the same rates, and a skipped step moves the schedule like any other.
"""

import math

from parity.training.config import ScheduleConfig


def learning_rate_share(step: int, config: ScheduleConfig, total_steps: int) -> float:
    """The share of the peak rate that optimizer step `step` (from 0) uses.

    Warm-up step s uses (s + 1) / warmup_steps, so the first step is never lost at rate 0
    and the peak is reached on the last warm-up step. Afterwards, with x running from 0
    over the remaining steps and reaching 1 just behind the last one:
    linear 1 - x (1 - final_share); cosine final_share + (1 - final_share)(1 + cos pi x) / 2.
    Steps behind `total_steps` stay at the final share.

    Args:
        step: optimizer steps taken before this one, >= 0.
        config: shape, warm-up and final share.
        total_steps: optimizer steps of the whole run, >= 1.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.shape == "constant":
        return 1.0
    decay_steps = max(1, total_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / decay_steps)
    span = 1.0 - config.final_share
    if config.shape == "linear":
        return 1.0 - progress * span
    return config.final_share + span * 0.5 * (1.0 + math.cos(math.pi * progress))
