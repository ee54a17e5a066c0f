"""Judges the gates of a test file outside a run: a record by hand, or the newest stored values.

Used by `parity ci gate`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parity.ci.gates.gate import Gate, GateSettings
from parity.ci.gates.history import History, HistoryError, Point, Series
from parity.ci.gates.judge import STEP, Judge, Judgement, Place, judge_value
from parity.ci.gates.record import Recorded
from parity.ci.model import Inventory, Registration, Steps
from parity.errors import ConfigError

_RECENT = 60  # stored values that a picture shows


@dataclass(frozen=True, slots=True)
class Reviewed:
    """One judgement and the newest stored values of its series, oldest first."""

    place: Place
    judgement: Judgement
    recent: tuple[Point, ...]


def gated(
    inventory: Inventory,
    settings: GateSettings,
    *,
    path: str | None,
    backend: str | None,
    suite: str | None,
) -> list[tuple[Place, list[Gate]]]:
    """The gates by the place they hold for, narrowed to what is asked.

    Raises ConfigError where nothing is left.
    """
    found: list[tuple[Place, list[Gate]]] = []
    for file in inventory.files:
        if path not in (None, file.path):
            continue
        for registration in file.registrations:
            if backend in (None, registration.backend) and suite in (None, registration.suite):
                gates = [settings.gate(g) for g in file.gates if g.applies_to(registration.backend)]
                found += [(_place(registration), gates)] if gates else []
    if not found:
        asked = ", ".join(word for word in (path, backend, suite) if word) or "the repository"
        raise ConfigError(f"{asked} has no gate; register_ci_gate in a test file declares one.")
    return found


def of_record(
    place: Place, gates: Sequence[Gate], record: Sequence[Recorded], judge: Judge
) -> Iterator[Reviewed]:
    """A record, judged against the history as it is."""
    for judged in judge.record(gates, record, place):
        recent = (
            ()
            if judge.history is None
            else _recent(judge.history, place, judged.metric_key, judged.at)
        )
        yield Reviewed(place, judged, tuple(recent))


def of_history(place: Place, gates: Sequence[Gate], judge: Judge) -> Iterator[Reviewed]:
    """The newest stored value of each series, judged against what was trusted before it."""
    history = judge.history
    if history is None:
        raise HistoryError("no history store is given; give --history, or a --record to judge.")
    stored = history.series(place.test)
    for gate in gates:
        for series in stored:
            is_ours = (series.backend, series.suite) == (place.backend, place.suite)
            if not is_ours or series.metric != gate.metric_key or not _asks(gate.steps, series.at):
                continue
            recent = _recent(history, place, series.metric, series.at)
            newest, before = recent[-1], recent[:-1]
            trusted = [point for point in before if point.is_trusted][-judge.limit :]
            judged = judge_value(
                gate, series.at, newest.value, trusted, least=judge.least, has_store=True
            )
            yield Reviewed(place, judged, tuple(before))


def _recent(history: History, place: Place, metric: str, at: str) -> list[Point]:
    series = Series(place.test, place.backend, place.suite, metric, at)
    return history.recent(series, limit=_RECENT)


def _asks(steps: Steps, at: str) -> bool:
    """Whether a gate judges that place; what an earlier declaration stored isn't shown."""
    if isinstance(steps, str):
        return at.startswith(STEP) if steps == "all" else at == steps
    return at in [f"{STEP}{number}" for number in steps]


def _place(registration: Registration) -> Place:
    return Place(registration.path, registration.backend, registration.suite)
