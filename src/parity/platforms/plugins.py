"""Platforms of other packages: found by the entry-point group `parity.platforms`, loaded once.

PARITY_PLUGINS says which: `auto` (all; the default), `none`, or names. They are loaded before the
first decision, because a decision is made over all platforms. A plugin that can't be loaded is
kept with its traceback for `parity doctor` and said loudly; it never stops the others. Used by
`detect.py` and `collect.py`.
"""

import contextlib
import inspect
import logging
import os
import sys
import threading
import traceback
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import UnionType
from typing import ClassVar, cast, get_args, get_origin

from parity.platforms import PLATFORMS, SHIPPED
from parity.platforms.platform import FACT_NAMES, ROLES, Default, Platform
from parity.registry import known

log = logging.getLogger(__name__)
GROUP = "parity.platforms"
VARIABLE = "PARITY_PLUGINS"
AUTO, NONE = "auto", "none"
PATIENCE_S = 10.0  # after it a plugin that is still being loaded is named
MAX_WORD = 60  # characters of a name that nobody has
MAX_SAID = 300  # characters of a plugin's own message


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """A platform of another package that isn't there, and why."""

    name: str
    distribution: str | None  # the package that registers it, with its version; None: nobody does
    message: str  # one sentence
    traceback: str | None = None  # None: nothing was raised


@dataclass(frozen=True, slots=True)
class Plugins:
    """What PARITY_PLUGINS led to."""

    policy: str
    platforms: Mapping[str, type[Platform]]  # by name, sorted
    failures: tuple[PluginFailure, ...]  # by name, sorted


def loaded() -> Plugins:
    """The plugins of this process; loaded at the first call, failures logged once."""
    return _load(os.environ.get(VARIABLE, ""))


def all_platforms() -> dict[str, type[Platform]]:
    """Every platform of this process by name, sorted: those that ship, and the plugins."""
    return dict(sorted({**_shipped(), **loaded().platforms}.items()))


@cache
def _shipped() -> Mapping[str, type[Platform]]:
    return {name: cast("type[Platform]", PLATFORMS.load(name)) for name in SHIPPED}


@cache
def _load(policy: str) -> Plugins:
    plugins = load_plugins(policy, entry_points(group=GROUP))
    for failure in plugins.failures:
        log.error("event=plugin_failed plugin=%s %s", failure.name, failure.message)
    return plugins


def load_plugins(policy: str, points: Iterable[EntryPoint]) -> Plugins:
    """Load the entry points that the policy lets through. Never raises, whatever a plugin does."""
    by_name: dict[str, list[EntryPoint]] = {}
    for point in points:
        by_name.setdefault(point.name, []).append(point)
    words = [word.strip() for word in policy.split(",") if word.strip()] or [AUTO]
    failures: list[PluginFailure] = []
    if words == [AUTO]:
        wanted = sorted(by_name)
    elif words == [NONE]:
        wanted = []
    else:
        wanted = sorted(set(words) & by_name.keys())
        failures = [_unknown(word, by_name) for word in sorted(set(words) - by_name.keys())]
    platforms: dict[str, type[Platform]] = {}
    for name in wanted:
        found = _load_one(name, by_name[name])
        if isinstance(found, PluginFailure):
            failures.append(found)
        else:
            platforms[name] = found
    ordered = sorted(failures, key=lambda failure: failure.name)
    return Plugins(",".join(words), platforms, tuple(ordered))


def _unknown(word: str, by_name: Mapping[str, object]) -> PluginFailure:
    shown = _printable(word, MAX_WORD)
    message = f"{VARIABLE} names {shown!r}; {known(word, [AUTO, NONE, *sorted(by_name)])}"
    if word in (AUTO, NONE):
        message = f"{VARIABLE} has {word!r} among names; write it alone."
    return PluginFailure(shown, None, message)


def _load_one(name: str, points: list[EntryPoint]) -> type[Platform] | PluginFailure:
    owners = ", ".join(sorted({_owner(point) or "an unknown package" for point in points}))
    targets = sorted({point.value for point in points})
    if name in SHIPPED:
        message = f"{owners} registers the platform {name!r}, which ships with Parity; rename it."
        return PluginFailure(name, owners, message)
    if len(targets) > 1:
        message = f"the platform {name!r} is registered by {owners}; uninstall all but one."
        return PluginFailure(name, owners, message)
    place = f"{targets[0]} of {owners}"
    try:
        with _told_where_it_hangs(place), contextlib.redirect_stdout(sys.stderr):
            found: object = points[0].load()
            wrong = _wrong(name, found) or _untried(cast("type[Platform]", found))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (other people's code: it may raise anything)
        message = f"{place} can't be loaded: {type(error).__name__}: {_said(error)}"
        return PluginFailure(name, owners, message, _trace())
    if wrong is not None:
        return PluginFailure(name, owners, f"{place} {wrong}")
    return cast("type[Platform]", found)


@contextlib.contextmanager
def _told_where_it_hangs(place: str) -> Generator[None]:
    """Say what is waited for: an import can't be broken off, and its user must know which it is."""
    timer = threading.Timer(
        PATIENCE_S,
        log.warning,
        ("event=plugin_slow %s is still being loaded; %s=none leaves it out.", place, VARIABLE),
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _said(error: BaseException) -> str:
    """What an error says, on one line that is safe to print; its own code may fail too."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 (see above)
        return "(it has no message)"
    return _printable(text, MAX_SAID)


def _printable(text: str, most: int) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in text[:most])
    return shown + ("..." if len(text) > most else "")


def _trace() -> str:
    try:
        return traceback.format_exc()
    except Exception:  # noqa: BLE001 (an error whose own code fails)
        return "(its traceback can't be shown)"


def _wrong(name: str, found: object) -> str | None:
    """Why this isn't a platform of that name; None where it is one."""
    if not isinstance(found, type) or not issubclass(found, Platform):
        return "isn't a subclass of parity.platforms.platform.Platform."
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        return f"lacks methods of the contract: {missing}."
    if found.name != name:
        return f"calls itself {found.name!r}; its entry point must have the same name."
    if name in (AUTO, NONE):
        return f"is called {name!r}, which has a meaning of its own; rename it."
    return _wrong_fact(found)


def _wrong_fact(found: type[Platform]) -> str | None:
    for fact in FACT_NAMES:
        if not _fits(getattr(found, fact), Platform.__annotations__[fact]):
            return f"says {fact}={getattr(found, fact)!r}; its type must be that of the contract."
    if found.precedence < 1:
        return f"says precedence={found.precedence}; it must be 1 or more, because 0 is the CPU's."
    return None


def _fits(value: object, hint: object) -> bool:
    """Whether a fact is of the type that the contract annotates."""
    if get_origin(hint) is ClassVar:
        return _fits(value, get_args(hint)[0])
    if get_origin(hint) is tuple:  # all of them hold texts
        return isinstance(value, tuple) and all(
            isinstance(each, str) for each in cast("tuple[object, ...]", value)
        )
    if isinstance(hint, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    is_flag_for_number = hint is int and isinstance(value, bool)
    return isinstance(hint, type) and isinstance(value, hint) and not is_flag_for_number


def _untried(kind: type[Platform]) -> str | None:
    """Why it can't be asked for what every process asks; raises what its own code raises."""
    platform = kind()
    if not isinstance(cast("object", kind.remedy()), str):
        return "has a remedy that isn't a text."
    for role in ROLES:
        for default in platform.defaults(role, {}):
            if not isinstance(cast("object", default), Default):
                return f"has a default for {role} that isn't a Default."
    return None


def _owner(point: EntryPoint) -> str | None:
    return None if point.dist is None else f"{point.dist.name} {point.dist.version}"
