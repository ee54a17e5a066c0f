"""What a run file may say about waits: how long each kind may last (no torch here).

The limits of one episode and one answer are `rollouts.episode_timeout_s` and
`grader.timeout_s`; these here are for what has no other limit. They are generous, since a
first step may compile and a checkpoint may be large.
"""

from dataclasses import dataclass, fields

from parity import checks

LEAST_STALL_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class SuperviseConfig:
    """How long a run waits before it ends with the page `hang.txt` (docs/reliability.md)."""

    stall_timeout_s: float | None = None  # no token and no ended group; null: from other limits
    start_timeout_s: float = 3600.0  # loading the model, reading the tasks, starting the grader
    step_timeout_s: float = 3600.0  # one optimizer step, the first with its compilation
    publish_timeout_s: float = 1800.0  # one publication of weights
    checkpoint_timeout_s: float = 3600.0  # saving one checkpoint, or the export
    loop_timeout_s: float = 300.0  # the event loop answers within it
    stop_timeout_s: float = 30.0  # an end in good order; then the process ends all the same

    def __post_init__(self) -> None:
        for each in fields(self):
            value: float | None = getattr(self, each.name)
            if value is not None:
                checks.above(each.name, value, 0.0)

    def stall_s(self, longest_silence_s: float) -> float:
        """The limit without a sign of life; `longest_silence_s` is what other limits allow."""
        if self.stall_timeout_s is not None:
            return self.stall_timeout_s
        return max(LEAST_STALL_S, longest_silence_s)
