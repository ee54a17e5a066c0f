"""Waits until a Ray cluster has all of its nodes; used by `parity launch wait` in scripts."""

import time

from parity.config import environment
from parity.errors import ConfigError, RoleError, UnsupportedError

_LOOK_S = 0.5


def gather(*, nodes: int, timeout_s: float) -> None:
    """Return when the cluster at RAY_ADDRESS has so many living nodes.

    Raises RoleError where it hasn't within `timeout_s`, and says which are there.
    """
    address = environment.ray_address()
    if address is None:
        raise ConfigError("RAY_ADDRESS isn't set; set it to the cluster to wait for, HOST:PORT.")
    try:
        import ray  # noqa: PLC0415 (seconds, and optional)
    except ImportError as error:
        raise UnsupportedError(
            f"waiting for a cluster needs Ray, which can't be imported ({error}); install"
            " parity-rl[ray]."
        ) from error
    deadline_s = time.monotonic() + timeout_s
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise RoleError(f"the Ray cluster at {address} can't be joined ({reason}).") from error
    try:
        while len(there := _living(ray.nodes())) < nodes:
            if time.monotonic() > deadline_s:
                raise RoleError(
                    f"the Ray cluster at {address} has {len(there)} of {nodes} nodes after"
                    f" {timeout_s:g} s ({', '.join(there) or 'none'}); see why the others didn't"
                    " start, or raise placement.start_timeout_s."
                )
            time.sleep(_LOOK_S)
    finally:
        ray.shutdown()


def _living(nodes: list[dict[str, object]]) -> list[str]:
    return [str(node["NodeManagerHostname"]) for node in nodes if node["Alive"]]
