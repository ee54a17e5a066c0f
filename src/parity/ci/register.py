"""What a test file calls at its top level to say where it runs. The calls do nothing.

`parity ci` reads the literals of these calls from the source text (`ci/registry/`) and never
imports a test file, so every argument must be a literal. The fields are explained in
`ci/model.py`.
"""

from collections.abc import Mapping, Sequence


def register_cpu_ci(
    est_time: float,
    suite: str,
    *,
    labels: Sequence[str] = (),
    nightly: bool = False,
    disabled: Mapping[str, str] | None = None,
) -> None:
    """This file runs on the CPU suite `suite` and takes about `est_time` seconds there."""


def register_cuda_ci(  # hardware name: test files call it
    est_time: float,
    suite: str,
    *,
    labels: Sequence[str] = (),
    nightly: bool = False,
    disabled: Mapping[str, str] | None = None,
) -> None:
    """This file runs on the NVIDIA suite `suite` and takes about `est_time` seconds there."""


def register_rocm_ci(  # hardware name: test files call it
    est_time: float,
    suite: str,
    *,
    labels: Sequence[str] = (),
    nightly: bool = False,
    disabled: Mapping[str, str] | None = None,
) -> None:
    """This file runs on the AMD suite `suite` and takes about `est_time` seconds there."""


def register_npu_ci(  # hardware name: test files call it
    est_time: float,
    suite: str,
    *,
    labels: Sequence[str] = (),
    nightly: bool = False,
    disabled: Mapping[str, str] | None = None,
) -> None:
    """This file runs on the Ascend suite `suite` and takes about `est_time` seconds there."""


def register_ci_gate(  # noqa: PLR0913 each is a literal of a declaration
    *,
    metric_key: str,
    steps: str | Sequence[int] = "last",
    rel_up: float | None = None,
    abs_up: float | None = None,
    rel_down: float | None = None,
    abs_down: float | None = None,
    hard_min: float | None = None,
    hard_max: float | None = None,
    mode: str = "shadow",
    backends: Sequence[str] | None = None,
) -> None:
    """The metric that this file records must stay in a band around its trusted history.

    See `GateRegistration` in `ci/model.py` for every field.
    """


def register_ci_cases(*, table: str) -> None:
    """The cases of this file are those of a case table, a file beside it (`ci/cases.py`)."""
