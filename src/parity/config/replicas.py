"""What a run file may say of several engines, against how many there are.

Used by `arithmetic.py`. A key that would have no effect is refused.
"""

from dataclasses import is_dataclass

from parity.engines.config import RouterConfig
from parity.errors import ConfigError
from parity.runtime.config import PlacementConfig


def check_replicas(placement: PlacementConfig) -> None:
    """What is said of several engines needs several, and time to start one beside the others."""
    if placement.engine_replicas == 1:
        for changed, found in differing(placement.router, RouterConfig()):
            raise ConfigError(
                f"placement.router.{changed} is {found!r} and has no effect with"
                " placement.engine_replicas=1; set placement.engine_replicas=2, or leave the key"
                " out."
            )
    if not placement.restarts and placement.engine_restarts:
        reason = "placement.engine_replicas=1, where no other engine serves meanwhile"
        if placement.takes_turns:
            reason = f"placement.kind={placement.kind}, where an engine can't load beside a step"
        raise ConfigError(
            f"placement.engine_restarts is {placement.engine_restarts} with {reason}; set"
            " placement.engine_restarts=0 or leave the key out."
        )


def differing(value: object, default: object) -> list[tuple[str, object]]:
    """Each field of a dataclass that isn't as in another of its kind: dotted name and value."""
    found: list[tuple[str, object]] = []
    for key, usual in vars(default).items():
        here: object = getattr(value, key)
        if is_dataclass(usual) and type(here) is type(usual):
            found += [(f"{key}.{name}", leaf) for name, leaf in differing(here, usual)]
        elif here != usual:
            found.append((key, here))
    return found
