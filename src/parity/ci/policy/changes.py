"""Which suites a change affects, judged by its paths. Fails open: in doubt, all of them.

Used by the plan, for events whose rule prunes. Invariant: a suite is spared only where every
changed path is known not to affect it; no list, a broken list or an unknown path spares nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from parity.ci.config import Config
from parity.ci.globs import expands
from parity.ci.model import Inventory
from parity.ci.text import harmless

STATUSES = {"A": 1, "M": 1, "D": 1, "T": 1, "R": 2, "C": 2}  # number of paths after each


@dataclass(frozen=True, slots=True)
class Changes:
    """The changed paths; None where they aren't known, with the reason."""

    paths: tuple[str, ...] | None
    why_unknown: str | None = None


@dataclass(frozen=True, slots=True)
class Affected:
    """The suites that may be affected, and the sentence that says why the others are spared."""

    suites: frozenset[str]
    text: str


def read_changes(listing: str) -> Changes:
    """The paths of `git diff --name-status -z -M`, both of a renamed file."""
    if not listing.strip("\0\n "):
        return Changes(None, "the list of changed paths is empty")
    if not listing.endswith("\0"):
        return Changes(None, "the list of changed paths is cut off (git diff --name-status -z)")
    words = listing[:-1].split("\0")
    paths: list[str] = []
    at = 0
    while at < len(words):
        status = words[at]
        count = STATUSES.get(status[:1])
        if count is None or not (status[1:].isdecimal() or not status[1:]):
            return Changes(None, f"the list of changed paths has the unknown status {status!r}")
        found = words[at + 1 : at + 1 + count]
        if len(found) < count or not all(_is_plain(path) for path in found):
            return Changes(None, f"the list of changed paths is broken after the status {status!r}")
        paths.extend(found)
        at += 1 + count
    return Changes(tuple(dict.fromkeys(paths)))


def _is_plain(path: str) -> bool:
    return bool(path) and not path.startswith("/") and ".." not in path.split("/")


def affected(changes: Changes, inventory: Inventory, config: Config) -> Affected:
    """The suites that a change may affect."""
    everything = frozenset(config.suites)
    if not changes.paths:
        why = changes.why_unknown or "the list of changed paths is empty"
        return Affected(everything, f"all suites: {why}")
    owners = _owners(inventory)
    found: set[str] = set()
    for path in changes.paths:
        suites = _suites_of(path, owners, config)
        if suites is None:
            return Affected(everything, f"all suites: no rule of ci.toml knows {_shown(path)}")
        found.update(suites)
    return Affected(frozenset(found), _summary(changes.paths))


def _suites_of(
    path: str, owners: dict[str, frozenset[str]], config: Config
) -> Iterable[str] | None:
    """The suites of one path; None where that isn't known."""
    if path == config.path.name:
        return None
    if path in owners:
        return owners[path]
    for rule in config.paths:
        if any(expands(glob, path) for glob in rule.globs):
            return rule.suites
    return None


def _owners(inventory: Inventory) -> dict[str, frozenset[str]]:
    """The suites of each test file and of each case table."""
    owners: dict[str, frozenset[str]] = {}
    for file in inventory.files:
        suites = frozenset(each.suite for each in file.registrations)
        for path in {file.path, file.case_table or file.path}:
            owners[path] = owners.get(path, frozenset()) | suites
    return owners


def _shown(path: str) -> str:
    """A stranger chose the name."""
    return harmless(path)[:120]


def _summary(paths: tuple[str, ...]) -> str:
    shown = ", ".join(map(_shown, paths[:3]))
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown
