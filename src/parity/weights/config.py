"""What a run file may say about publishing weights (no torch here)."""

from dataclasses import dataclass
from typing import Literal, get_args

from parity import checks
from parity.errors import ConfigError

Transport = Literal["auto", "direct", "zmq_ipc", "collective", "disk"]
Verify = Literal["digests", "canary", "off"]
Delta = Literal["off", "xor", "overwrite"]
WireDtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class DtypeRule:
    """Tensors whose name matches `names` travel as `dtype`."""

    names: str  # shell pattern, for instance "*.mlp.gate.weight"
    dtype: WireDtype = "float32"

    def __post_init__(self) -> None:
        if not self.names:
            raise ConfigError("names is empty; it must be a pattern such as '*.gate.weight'.")
        checks.one_of("dtype", self.dtype, get_args(WireDtype))


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """How a version gets from the trainer into the engines."""

    # auto: direct in one process, zmq_ipc on one host; between hosts disk where dir is given,
    # else collective
    transport: Transport = "auto"
    verify: Verify = "digests"  # of every tensor; canary: log-probs of fixed tokens; off
    bucket_mib: float = 16.0  # size of a bucket; two exist per side
    timeout_s: float = 60.0  # longest wait for one answer of the other side, > 0
    commit_timeout_s: float = 3600.0  # longest wait between verified and committed, > 0
    skip: tuple[str, ...] = ()  # patterns of names that aren't published; each must match one
    dtype: WireDtype | None = None  # of floating-point tensors on the wire; null: as trained
    dtype_rules: tuple[DtypeRule, ...] = ()  # exceptions; the first that matches counts
    shared_memory_dir: str = "/dev/shm"  # zmq_ipc: where the buckets are
    dir: str | None = None  # disk: the folder; null: weights/ in the run folder
    delta: Delta = "xor"  # disk: how a version is written against the one before
    full_every: int = 16  # disk: versions between two full ones, >= 1
    keep: int = 4  # disk: versions that stay beside those a late joiner needs, >= 1

    def __post_init__(self) -> None:
        checks.one_of("transport", self.transport, get_args(Transport))
        checks.one_of("verify", self.verify, get_args(Verify))
        checks.at_least("bucket_mib", self.bucket_mib, 0.0625)
        checks.above("timeout_s", self.timeout_s, 0.0)
        checks.above("commit_timeout_s", self.commit_timeout_s, 0.0)
        checks.one_of("delta", self.delta, get_args(Delta))
        checks.at_least("full_every", self.full_every, 1)
        checks.at_least("keep", self.keep, 1)

    @property
    def bucket_bytes(self) -> int:
        """The size of a bucket, a multiple of 64 bytes."""
        return int(self.bucket_mib * 2**20) // 64 * 64
