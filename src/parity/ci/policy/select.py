"""Chooses the registrations that run; each other one gets its reason.

Used by the plan. Invariant: every registration of the inventory comes out exactly once, either
selected or skipped, and the first reason in the order of `_reason` is the one that is told.
"""

from collections.abc import Collection
from dataclasses import dataclass

from parity.ci.config import Config
from parity.ci.model import Inventory, Policy, Reason, Registration, Skipped, Why
from parity.ci.policy.changes import Affected


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller narrowed the plan to; None: everything."""

    backend: str | None = None
    suite: str | None = None
    files: Collection[str] | None = None  # one-file reruns: labels and paths don't matter then


@dataclass(frozen=True, slots=True)
class Selection:
    """The outcome, both parts in the order of the inventory."""

    selected: tuple[Registration, ...]
    skipped: tuple[Skipped, ...]


def select(
    inventory: Inventory, policy: Policy, config: Config, asked: Asked, affected: Affected | None
) -> Selection:
    """Choose the tests of a policy. `affected` is None where changed paths prune nothing."""
    selected: list[Registration] = []
    skipped: list[Skipped] = []
    for each in inventory.registrations:
        reason = _reason(each, policy, config, asked, affected)
        if reason is None:
            selected.append(each)
        else:
            skipped.append(Skipped(each, reason))
    return Selection(tuple(selected), tuple(skipped))


def _reason(
    test: Registration, policy: Policy, config: Config, asked: Asked, affected: Affected | None
) -> Reason | None:
    checks = [_not_asked(test, asked), _disabled(test)]
    if asked.files is None:
        checks += [
            _out_of_cadence(test, policy, config),
            _labels(test, policy),
            _pruned(test, policy, affected),
        ]
    return next((reason for reason in checks if reason is not None), None)


def _not_asked(test: Registration, asked: Asked) -> Reason | None:
    if asked.files is not None and test.path not in asked.files:
        return Reason(Why.NOT_ASKED, f"only {', '.join(sorted(asked.files))} was asked for")
    if asked.backend is not None and test.backend != asked.backend:
        return Reason(Why.NOT_ASKED, f"only the backend {asked.backend} was asked for")
    if asked.suite is not None and test.suite != asked.suite:
        return Reason(Why.NOT_ASKED, f"only the suite {asked.suite} was asked for")
    return None


def _disabled(test: Registration) -> Reason | None:
    off = test.disabled
    if off is None:
        return None
    text = f"disabled until {off.expires} by {off.owner}: {off.reason} ({off.issue})"
    return Reason(Why.DISABLED, text)


def _out_of_cadence(test: Registration, policy: Policy, config: Config) -> Reason | None:
    cadences = config.suites[test.suite].cadences
    if policy.cadence not in cadences:
        text = f"{test.suite} runs in {', '.join(cadences) or 'no cadence'}, not {policy.cadence}"
        return Reason(Why.CADENCE, text)
    if test.nightly and not policy.admits_nightly:
        return Reason(Why.NIGHTLY, f"a nightly test, and {policy.cadence} admits none")
    return None


def _labels(test: Registration, policy: Policy) -> Reason | None:
    own = set(test.labels)
    if not own or own & policy.explicit_labels:
        return None
    if vetoed := sorted(own & policy.veto_labels):
        text = f"the scope {policy.scope} keeps out {', '.join(vetoed)}, unless asked for by name"
        return Reason(Why.VETOED, text)
    if own & policy.include_labels:
        return None
    wanted = ", ".join(sorted(policy.include_labels)) or "none"
    text = f"none of its labels ({', '.join(test.labels)}) is in scope ({policy.scope}: {wanted})"
    return Reason(Why.LABELS, text)


def _pruned(test: Registration, policy: Policy, affected: Affected | None) -> Reason | None:
    if affected is None or test.suite in affected.suites:
        return None
    if set(test.labels) & policy.explicit_labels:
        return None
    return Reason(Why.PRUNED, f"no changed path affects {test.suite} (changed: {affected.text})")
