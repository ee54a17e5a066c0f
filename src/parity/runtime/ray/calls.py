"""Waiting for actors: every wait ends, and says which process is to blame.

    died       its process is gone                        named first
    refused    it raised an error of Parity's own         raised as it is
    failed     it raised anything else                    named, with those that stayed silent
    silent     no answer within the deadline, or shortly after another one failed

One rank's end makes the others fail in their collective calls; so after the first failure the
others get a moment to tell theirs, and the one that died is named. Used by `trainer.py` and
`transfer.py` in the driver.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
    RayError,
    RayTaskError,
)

from parity.errors import ParityError, RoleError
from parity.runtime.ray.role import Reply, tell

Value = TypeVar("Value")
_SLICE_S = 0.5
# How the lines of Ray's text begin that say why a process, or its host, is gone.
_TELLING = ("the actor is dead", "the actor died because", "the actor's node was terminated")
_GRACE_S = 5.0  # after the first failure
log = logging.getLogger(__name__)


class Calls:
    """Waits for the roles of one run; `stop` ends every wait of it."""

    def __init__(self, logs_dir: str) -> None:
        self.logs_dir = logs_dir
        self._stop = threading.Event()

    def stop(self) -> None:
        """End every wait, now and later."""
        self._stop.set()

    def wait(
        self, asked: Mapping[str, "ray.ObjectRef[Value]"], what: str, *, deadline_s: float
    ) -> dict[str, Any]:
        """The answers by role; blocks. `what` reads on from "while it was to".

        Raises the role's own ParityError, or RoleError with the name of the role.
        """
        answers: dict[str, Any] = {}
        failures: dict[str, BaseException] = {}
        names = {ref: name for name, ref in asked.items()}
        end_s = time.monotonic() + deadline_s
        while len(answers) + len(failures) < len(asked):
            if self._stop.is_set():
                raise RoleError(f"the run was ended before {', '.join(asked)} could {what}.")
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            ready, _ = ray.wait(list(names), num_returns=1, timeout=min(_SLICE_S, left_s))
            for ref in ready:
                name = names.pop(ref)
                try:
                    reply = ray.get(ref, timeout=_GRACE_S)
                except (RayError, ParityError) as error:
                    if not failures:
                        end_s = min(end_s, time.monotonic() + _GRACE_S)
                    failures[name] = cause_of(error)
                else:
                    answers[name] = reply
                    if isinstance(reply, Reply):
                        tell(name, reply.told)
                        answers[name] = reply.value
        if failures or names:
            raise self._error(failures, list(names.values()), what, deadline_s)
        return answers

    async def gather(
        self, asked: Mapping[str, "ray.ObjectRef[Value]"], what: str, *, deadline_s: float
    ) -> dict[str, Any]:
        """`wait` beside the event loop; cancelling it leaves the actors at their work."""
        return await asyncio.to_thread(self.wait, asked, what, deadline_s=deadline_s)

    def _error(
        self,
        failures: Mapping[str, BaseException],
        silent: list[str],
        what: str,
        deadline_s: float,
    ) -> ParityError:
        dead = [name for name, error in failures.items() if isinstance(error, RayActorError)]
        if dead:
            reasons = "; ".join(f"{name}: {short(failures[name])}" for name in dead)
            return RoleError(
                f"{' and '.join(dead)} died while {_it(dead)} was to {what} ({reasons}); "
                f"{self._see(dead)}."
            )
        for error in failures.values():
            if isinstance(error, ParityError) and not silent:
                return error
        blamed = [*silent, *failures]
        if failures:
            said = "; ".join(f"{name}: {short(error)}" for name, error in failures.items())
            mute = f", and {' and '.join(silent)} did not answer" if silent else ""
            return RoleError(
                f"{' and '.join(failures)} failed while {_it(list(failures))} was to {what}"
                f" ({said}){mute}; {self._see(blamed)}."
            )
        return RoleError(
            f"{' and '.join(silent)} did not {what} within {deadline_s:g} s; {self._see(blamed)}."
        )

    def _see(self, names: list[str]) -> str:
        logs = ", ".join(f"{name}.log" for name in names)
        return f"see {logs} in {self.logs_dir}"


def _it(names: list[str]) -> str:
    return "it" if len(names) == 1 else "each"


def cause_of(error: BaseException) -> BaseException:
    """What the actor's own code raised, or what Ray says of the actor."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        return cause if isinstance(cause, BaseException) else error
    return error


def short(error: BaseException) -> str:
    """One line, not too long; of a dead actor what Ray knows of its end."""
    if isinstance(error, GetTimeoutError):
        return "its answer can't be fetched"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, ActorUnavailableError):
        return f"the connection to its host broke: {' '.join(lines)}"[:300]
    if isinstance(error, RayActorError):
        told = [line for line in lines if line.lower().startswith(_TELLING)]
        hosts = [f"its host was {line[4:]}" for line in lines if line.startswith("ip: ")]
        return "; ".join((*(told or lines[:1]), *hosts))[:300]
    kind = "" if isinstance(error, ParityError) else f"{type(error).__name__}: "
    return f"{kind}{lines[-1] if isinstance(error, RayTaskError) and lines else ' '.join(lines)}"[
        :300
    ]
