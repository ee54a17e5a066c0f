"""The contract of a task source: numbered tasks that can be read at random.

`task(i)` is a pure function of the source's config and `i`: the same index gives the same
task in every process and after every restart, which is what makes a run resumable from
one number. A source is built as `Source(config, seed=seed)`, in the driver.

Third parties register theirs under the entry point `parity.tasks` (docs/adding.md). Such a
class has an attribute `Config`: a frozen dataclass with the field `name: Literal["NAME"] =
"NAME"`, where NAME is the entry point's, and the keys of its `tasks` section. Fields may be
bool, int, float, str, Literal, X | None, tuple[X, ...], Mapping[str, Json] and dataclasses of
these; `__post_init__` raises a ConfigError that starts with the field's name. A field
`chat: bool | None` that is None becomes whether the tokenizer has a chat template. `parity
config` imports the module, so what is slow to import belongs into `__init__`.
"""

from abc import ABC, abstractmethod

import numpy

from parity.errors import DataError
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

        Raises DataError with `place: reason` where the record can't be used, SourceError where
        none can any more.
        """

    def pass_over(self, index: int, error: DataError) -> None:
        """Say what becomes of a run that drew the task at `index`, which can't be used.

        Raises DataError with `place: reason` where that ends the run; returns where the run goes
        on without the task. A source without a policy of its own ends it.
        """
        raise error

    def order(self, indices: range, seed: int, epoch: int) -> list[int]:
        """The order in which an epoch visits `indices`: a seeded permutation."""
        generator = numpy.random.default_rng([seed, epoch])
        return (generator.permutation(len(indices)) + indices.start).tolist()
