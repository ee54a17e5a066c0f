"""Event and labels in, `Policy` out: the cadence, the scope, and what was asked for by name.

Used by the plan. Invariant: a pure function; an event, cron line, cadence or CI label that
ci.toml doesn't know is an error, and a label that isn't about CI is kept apart, never dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from parity.ci.config import Cadence, Config, EventRule, Scope, WorkflowLabel
from parity.ci.model import Event, Policy
from parity.errors import ConfigError
from parity.registry import known


@dataclass
class _Heard:
    """The labels of an event, sorted by what they mean."""

    explicit: list[str] = field(default_factory=list[str])
    workflow: list[WorkflowLabel] = field(default_factory=list[WorkflowLabel])
    ignored: list[str] = field(default_factory=list[str])


def resolve(event: Event, config: Config, *, match_all: bool = False) -> Policy:
    """What an event means. `match_all`: every label counts as asked for by name."""
    rule = _rule(event, config)
    heard = _hear(event.labels, config)
    cadence = _cadence(event, rule, heard, config)
    scope = _scope(rule, cadence, heard, config)
    explicit = frozenset(config.labels if match_all else heard.explicit)
    fail_fast = [each.fail_fast for each in heard.workflow if each.fail_fast is not None]
    is_by_label = any(each.cadence is not None for each in heard.workflow)
    return Policy(
        event=event.name,
        cadence=cadence.name,
        scope=scope.name,
        include_labels=scope.include(config.labels) | explicit,
        explicit_labels=explicit,
        veto_labels=frozenset(scope.veto),
        admits_nightly=cadence.admits_nightly,
        fail_fast=all(fail_fast) if fail_fast else cadence.fail_fast,
        writes_history=cadence.writes_history and rule.writes_history and not is_by_label,
        prunes=rule.prunes and not scope.is_broad,
        consumed=tuple(sorted(each.name for each in heard.workflow)),
        one_shot=tuple(sorted(each.name for each in heard.workflow if each.is_one_shot)),
        ignored=tuple(sorted(set(heard.ignored))),
    )


def _rule(event: Event, config: Config) -> EventRule:
    if event.name not in config.events:
        raise ConfigError(
            f"the event {event.name!r} is unknown to ci.toml; {known(event.name, config.events)}"
            " Add an [events] table for it."
        )
    return config.events[event.name]


def _hear(labels: Sequence[str], config: Config) -> _Heard:
    heard = _Heard()
    prefix = config.label_prefix
    for label in dict.fromkeys(labels):
        key = label.removeprefix(prefix)
        if label in config.workflow_labels:
            heard.workflow.append(config.workflow_labels[label])
        elif label.startswith(prefix) and key in config.labels:
            heard.explicit.append(key)
        elif label.strip().lower().startswith(prefix.lower()):
            names = [f"{prefix}{each}" for each in config.labels]
            names += config.workflow_labels
            raise ConfigError(
                f"the label {label!r} is unknown to ci.toml; {known(label, names)}"
                " Take it off, or add it to [labels]."
            )
        else:
            heard.ignored.append(label)
    return heard


def _cadence(event: Event, rule: EventRule, heard: _Heard, config: Config) -> Cadence:
    """An explicit cadence, else a label's, else that of the cron line or of the event."""
    by_cron = None if event.schedule is None else _by_cron(event, rule, config)
    if event.cadence is not None:
        if event.cadence not in config.cadences:
            raise ConfigError(
                f"the cadence {event.cadence!r} is unknown to ci.toml;"
                f" {known(event.cadence, config.cadences)}"
            )
        return config.cadences[event.cadence]
    asked = {each.cadence: each.name for each in heard.workflow if each.cadence is not None}
    if len(asked) > 1:
        both = " and ".join(f"{name} ({cadence})" for cadence, name in sorted(asked.items()))
        raise ConfigError(f"the labels {both} ask for different cadences; keep one of them.")
    if asked:
        return config.cadences[next(iter(asked))]
    name = by_cron or rule.cadence
    if name is None:
        lines = [line for each in config.cadences.values() for line in each.cron]
        raise ConfigError(
            f"the event {event.name} says no cadence by itself; give --schedule with its cron line"
            f" ({', '.join(lines) or 'ci.toml has none'}), or --cadence"
            f" ({', '.join(config.cadences)})."
        )
    return config.cadences[name]


def _by_cron(event: Event, rule: EventRule, config: Config) -> str:
    if rule.cadence is not None:
        raise ConfigError(
            f"the event {event.name} always means {rule.cadence} and came with the cron line"
            f" {event.schedule!r}; leave the line out, or use the event of schedules."
        )
    lines = {line: each.name for each in config.cadences.values() for line in each.cron}
    if event.schedule not in lines:
        raise ConfigError(
            f"the cron line {event.schedule!r} is in no cadence of ci.toml;"
            f" {known(str(event.schedule), lines)}"
        )
    return lines[event.schedule]


def _scope(rule: EventRule, cadence: Cadence, heard: _Heard, config: Config) -> Scope:
    """Of the scopes that are asked for, the one with the highest rank."""
    wanted = [cadence.scope or rule.scope]
    wanted += [each.scope for each in heard.workflow if each.scope is not None]
    return max((config.scopes[name] for name in wanted), key=lambda each: (each.rank, each.name))
