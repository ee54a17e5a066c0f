"""Every process but the driver takes the driver's decision, and checks it against its own facts.

The driver starts a process with `Decision.to_variable()`; the process calls `adopt`. It never
decides anew: two processes of one run that chose differently would disagree on backends, lists
and sockets. Used by the runtimes.
"""

import dataclasses
import os

from parity.errors import ConfigError, UnsupportedError
from parity.platforms.collect import collect
from parity.platforms.cpu import CpuPlatform
from parity.platforms.decision import Decision, from_variable
from parity.platforms.detect import decide
from parity.platforms.facts import Facts
from parity.platforms.platform import Platform
from parity.platforms.plugins import all_platforms, loaded
from parity.registry import known


def differences(decision: Decision, facts: Facts, *, needs_device: bool) -> tuple[str, ...]:
    """Why a process with these facts can't work under the driver's decision; () where it can.

    A process that needs no device may have a torch for CPUs, but not one for another vendor. One
    that needs a device mustn't be known to have none: whether it really has one isn't asked of
    a vendor tool in every process, but of the runtime (`adopt`). Pure; never raises.
    """
    platforms = all_platforms()
    if decision.platform not in platforms:
        failed = "".join(f" {failure.message}" for failure in loaded().failures)
        return (
            f"the driver chose platform {decision.platform}, which isn't here;"
            f" {known(decision.platform, platforms)}{failed}",
        )
    kind = platforms[decision.platform]
    if (kind.vendor, kind.device_type) != (decision.vendor, decision.device_type):
        return (
            f"the driver knows platform {decision.platform} as {decision.vendor} devices of type"
            f" {decision.device_type}, and this process as {kind.vendor} and {kind.device_type};"
            " install the same versions on every node.",
        )
    chosen = f"the driver chose {decision.platform} ({'; '.join(decision.reasons)})"
    own = decide(facts, wanted=decision.platform)
    if needs_device:
        return _without_device(chosen, own)
    natural = decide(dataclasses.replace(facts, environment={}))
    if not own.is_built_for and natural.platform != CpuPlatform.name:
        return (f"{chosen}, and here {'; '.join(natural.reasons)}.",)
    return ()


def _without_device(chosen: str, own: Decision) -> tuple[str, ...]:
    here = "; ".join(own.reasons)
    if not own.is_built_for:
        return (f"{chosen}, and here {here}.",)
    if own.errors:
        return own.errors
    if own.devices == ():
        return (f"{chosen}, and this process has no device: {here}.",)
    return ()


def verify(decision: Decision, facts: Facts, *, needs_device: bool) -> None:
    """Raises UnsupportedError where this process can't work under the driver's decision."""
    if found := differences(decision, facts, needs_device=needs_device):
        raise UnsupportedError(" ".join(found))


def adopt(*, needs_device: bool) -> Platform:
    """The platform that the driver handed to this process, verified here.

    Raises UnsupportedError where it can't be used, ConfigError where none was handed over.
    """
    decision = from_variable(os.environ)
    if decision is None:
        raise ConfigError(
            "this process was to take the driver's decision on the platform, and has none; start"
            " it with the variables of Decision.to_variable()."
        )
    verify(decision, collect(probe_tools=False), needs_device=needs_device)
    platform = all_platforms()[decision.platform]()
    if needs_device:
        platform.require_usable()
    return platform
