"""`parity launch wait`: until the cluster at RAY_ADDRESS has all of its nodes."""

from typing import Annotated

import typer

EPILOG = """\b
Used by the script of `parity launch slurm`. Exit code 0: all nodes are there; 1: they aren't.
"""


def wait(
    nodes: Annotated[int, typer.Option(min=1, help="How many.")],
    timeout_s: Annotated[float, typer.Option(min=0.0, help="Longest wait.")] = 600.0,
) -> int:
    """Wait until the Ray cluster at RAY_ADDRESS has so many nodes."""
    from parity.cluster.gathering import gather

    gather(nodes=nodes, timeout_s=timeout_s)
    return 0
