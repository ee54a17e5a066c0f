"""What a shard has to do and how, as `job.py` takes it; light, so that a plan can be listed.

Made by `parity ci run` from the plan and the command line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from parity.ci.config import Suite
from parity.ci.model import PlannedTest, Skipped

UNLIMITED_S = float("inf")
Wrap = Callable[[Sequence[str], PlannedTest], Sequence[str]]


def unwrapped(argv: Sequence[str], _: PlannedTest) -> Sequence[str]:
    """The command as ci.toml has it."""
    return argv


@dataclass(frozen=True, slots=True)
class Work:
    """What a shard has to do, as the plan says."""

    suite: Suite
    shard: int  # from 0
    num_shards: int
    tests: Sequence[PlannedTest]
    skipped: Sequence[Skipped]  # those of this suite
    cadence: str
    writes_history: bool  # what event and cadence say; the branch has a say too
    allow_empty: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How this run is to go; None: as ci.toml says."""

    output_dir: Path
    continue_on_error: bool = False
    retries: int | None = None
    timeout_s: float | None = None
    shard_timeout_s: float = UNLIMITED_S
    history_url: str | None = None
    groups: bool = False
    run_id: str | None = None
    commit: str | None = None
    branch: str | None = None
    wrap: Wrap = unwrapped
