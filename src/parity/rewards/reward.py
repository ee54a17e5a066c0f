"""The contract of a reward: judges one answer, in a grader process, without torch.

`score` is called from one thread of a process of its own, which is killed when it passes
its deadline; it may therefore block, leak or crash without harm to the run. It returns
`Scored` (a finite number), `Unscored` (can't be graded: not a wrong answer) or
`GraderFailure` (broke; maybe worth another try). An exception counts as GraderFailure.
"""

from abc import ABC, abstractmethod

from parity.types import Answer, RewardResult


class Reward(ABC):
    """Judges answers; built once per grader process from its config section."""

    @abstractmethod
    def score(self, answer: Answer) -> RewardResult:
        """What the answer is worth."""
