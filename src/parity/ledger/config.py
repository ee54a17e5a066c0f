"""What a run file may say about the ledger (no torch here)."""

from dataclasses import dataclass

from parity import checks


@dataclass(frozen=True, kw_only=True)
class LedgerConfig:
    """How much is kept beside the database, and how long a call may wait for the disk."""

    payload_steps: int | None = 50  # trained steps whose payloads stay; null: all; 0: none written
    segment_mib: int = 64  # a payload file is closed at this size, >= 1
    linger_s: float = 0.5  # events are written at least so often, in one transaction, > 0
    max_wait_s: float = 30.0  # longest wait for room in the queue, or for the disk, > 0

    def __post_init__(self) -> None:
        if self.payload_steps is not None:
            checks.at_least("payload_steps", self.payload_steps, 0)
        checks.at_least("segment_mib", self.segment_mib, 1)
        checks.above("linger_s", self.linger_s, 0.0)
        checks.above("max_wait_s", self.max_wait_s, 0.0)
