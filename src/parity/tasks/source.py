"""The contract of a task source: numbered tasks that can be read at random.

`task(i)` is a pure function of the source's config and `i`: the same index gives the same
task in every process and after every restart, which is what makes a run resumable from
one number. A source is built as `Source(config, seed=seed)`. Third parties register theirs
under the entry point `parity.tasks`.
"""

from abc import ABC, abstractmethod

import numpy

from parity.types import Task


class TaskSource(ABC):
    """Numbered tasks."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of tasks in one epoch, >= 1."""

    @abstractmethod
    def task(self, index: int) -> Task:
        """The task at `index` in [0, size), not rendered yet (`tokens` empty).

        Raises DataError with `place: reason` where the record can't be used.
        """

    def order(self, indices: range, seed: int, epoch: int) -> list[int]:
        """The order in which an epoch visits `indices`: a seeded permutation."""
        generator = numpy.random.default_rng([seed, epoch])
        return (generator.permutation(len(indices)) + indices.start).tolist()
