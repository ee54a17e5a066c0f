"""Holds a record against its gates: pure, given the trusted history.

Used by `run/attempt.py` and `parity ci gate`. The reference is the median of the newest trusted
values, so that one odd run moves it little. A band follows a slow drift, for each small step
becomes history; the hard bound doesn't, and is judged whatever the history says. A series of
which little is known yet is NEW: not a pass, and not a failure either.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from parity.ci.gates.gate import Gate
from parity.ci.gates.history import History, Point, Series
from parity.ci.gates.record import Recorded
from parity.ci.model import GateMode

LAST, MEAN = "last", "mean"
STEP = "step "  # `step 12`: the place of one step in a series name


class Verdict(StrEnum):
    """What a gate says of a value."""

    PASS = "pass"
    NEW = "new series"  # within the hard bound; too few trusted values for a band
    UNJUDGED = "no history"  # within the hard bound; no history store was given for the band
    OUT_OF_BAND = "out of band"
    OUT_OF_BOUND = "out of bound"
    NON_FINITE = "not finite"
    MISSING = "missing"
    DUPLICATE = "duplicate"
    UNREADABLE = "unreadable record"


GOOD = (Verdict.PASS, Verdict.NEW, Verdict.UNJUDGED)


@dataclass(frozen=True, slots=True)
class Judgement:
    """One gate at one place (a step, the last one, the mean)."""

    metric_key: str
    at: str  # "last", "mean", "step 12"
    mode: GateMode
    verdict: Verdict
    reason: str
    value: float | None  # None where there is no single one
    reference: float | None = None  # the median of `history`
    low: float | None = None  # the band
    high: float | None = None
    hard_min: float | None = None
    hard_max: float | None = None
    history: tuple[Point, ...] = ()  # trusted values, oldest first

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.verdict in GOOD

    @property
    def blocks(self) -> bool:
        """Whether it fails the test."""
        return not self.is_good and self.mode == "enforced"


@dataclass(frozen=True, slots=True)
class Place:
    """The test whose record it is; with metric and step it names a series."""

    test: str
    backend: str
    suite: str


@dataclass(frozen=True, slots=True)
class Judge:
    """What all gates of a shard share."""

    history: History | None  # None: none was given, so bands can't be judged
    limit: int
    least: int
    known: Mapping[str, Sequence[Point]] | None = None  # by place, where it was asked for already

    def record(
        self, gates: Sequence[Gate], record: Sequence[Recorded], place: Place
    ) -> list[Judgement]:
        """The judgement of every gate, at every step that it asks for."""
        return [found for gate in gates for found in self._gate(gate, record, place)]

    def _gate(self, gate: Gate, record: Sequence[Recorded], place: Place) -> list[Judgement]:
        rows = [row for row in record if row.metric == gate.metric_key]
        if not rows:
            names = ", ".join(sorted({row.metric for row in record})) or "nothing"
            why = f"the test recorded no {gate.metric_key!r} (it recorded {names})"
            return [_without_value(gate, _first_place(gate), Verdict.MISSING, why)]
        counts = Counter(row.step for row in rows)
        twice = sorted(step for step, count in counts.items() if count > 1)
        values = {row.step: row.value for row in rows}
        if gate.steps == "mean":
            return [self._mean(gate, values, twice, place)]
        if gate.steps == "last":
            last = max(values)
            return [self._step(gate, LAST, last, values, twice, place)]
        wanted = gate.steps if not isinstance(gate.steps, str) else self._all(gate, values, place)
        judge = self._asked_once(gate, place)
        return [judge._step(gate, f"{STEP}{n}", n, values, twice, place) for n in wanted]

    def _asked_once(self, gate: Gate, place: Place) -> "Judge":
        """The same judge, who knows the history of every step of a gate already."""
        if self.history is None or gate.band is None:
            return self
        series = Series(place.test, place.backend, place.suite, gate.metric_key, LAST)
        return replace(self, known=self.history.trusted_places(series, limit=self.limit))

    def _all(self, gate: Gate, values: dict[int, float], place: Place) -> list[int]:
        """The steps of the record, and those that the newest trusted run had."""
        known = set(values)
        if self.history is not None:
            places = self.history.places(place.test, place.backend, place.suite, gate.metric_key)
            known |= {int(at.removeprefix(STEP)) for at in places if at.startswith(STEP)}
        return sorted(known)

    def _mean(
        self, gate: Gate, values: dict[int, float], twice: Sequence[int], place: Place
    ) -> Judgement:
        if twice:
            return _without_value(gate, MEAN, Verdict.DUPLICATE, _twice(gate, twice[0]))
        mean = _mean(list(values.values()))
        return self._value(gate, MEAN, mean, place)

    def _step(
        self,
        gate: Gate,
        at: str,
        step: int,
        values: dict[int, float],
        twice: Sequence[int],
        place: Place,
    ) -> Judgement:
        if step in twice:
            return _without_value(gate, at, Verdict.DUPLICATE, _twice(gate, step))
        if step not in values:
            first, last = min(values), max(values)
            why = f"{gate.metric_key!r} has no step {step}; recorded are steps {first} to {last}"
            return _without_value(gate, at, Verdict.MISSING, why)
        return self._value(gate, at, values[step], place)

    def _value(self, gate: Gate, at: str, value: float, place: Place) -> Judgement:
        if not math.isfinite(value):
            why = f"{gate.metric_key!r} is {value}"
            return _judgement(gate, at, Verdict.NON_FINITE, why, value)
        points: Sequence[Point] = ()
        if self.history is not None and gate.band is not None:
            series = Series(place.test, place.backend, place.suite, gate.metric_key, at)
            if self.known is None:
                points = self.history.trusted(series, limit=self.limit)
            else:
                points = self.known.get(at, [])
        has_store = self.history is not None
        return judge_value(gate, at, value, points, least=self.least, has_store=has_store)


def judge_value(
    gate: Gate, at: str, value: float, history: Sequence[Point], *, least: int, has_store: bool
) -> Judgement:
    """The judgement of one finite value.

    Args:
        history: trusted values, oldest first.
        least: fewer than these make no band.
        has_store: whether there is a history store at all.
    """
    points = tuple(history)
    low = high = reference = None
    if gate.band is not None and len(points) >= least:
        reference = _median([point.value for point in points])
        low, high = gate.band.around(reference)
    verdict, why = _compare(gate, value, low, high)
    if verdict is Verdict.PASS and gate.band is not None and reference is None:
        if has_store:
            verdict, why = Verdict.NEW, f"{len(points)} of {least} trusted values so far"
        else:
            verdict, why = Verdict.UNJUDGED, "no history store was given, so the band is unknown"
    found = _judgement(gate, at, verdict, why, value)
    return replace(found, reference=reference, low=low, high=high, history=points)


def _mean(values: Sequence[float]) -> float:
    """Also where the sum is beyond the largest float, and with values that aren't finite."""
    try:
        return statistics.fmean(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)
    except ValueError:  # inf and -inf
        return math.nan


def _median(values: Sequence[float]) -> float:
    """Also where the sum of the middle two is beyond the largest float."""
    low, high = statistics.median_low(values), statistics.median_high(values)
    return low if low == high else low / 2 + high / 2


def _compare(
    gate: Gate, value: float, low: float | None, high: float | None
) -> tuple[Verdict, str]:
    if gate.hard_min is not None and value < gate.hard_min:
        return Verdict.OUT_OF_BOUND, f"{value:.6g} is below the hard bound {gate.hard_min:.6g}"
    if gate.hard_max is not None and value > gate.hard_max:
        return Verdict.OUT_OF_BOUND, f"{value:.6g} is above the hard bound {gate.hard_max:.6g}"
    if low is not None and high is not None and not low <= value <= high:
        return Verdict.OUT_OF_BAND, f"{value:.6g} is outside {low:.6g} to {high:.6g}"
    return Verdict.PASS, ""


def _first_place(gate: Gate) -> str:
    return gate.steps if isinstance(gate.steps, str) else f"{STEP}{gate.steps[0]}"


def _twice(gate: Gate, step: int) -> str:
    return (
        f"{gate.metric_key!r} was recorded twice for step {step}; record it from one process only"
    )


def _without_value(gate: Gate, at: str, verdict: Verdict, why: str) -> Judgement:
    return _judgement(gate, at, verdict, why, None)


def _judgement(gate: Gate, at: str, verdict: Verdict, why: str, value: float | None) -> Judgement:
    return Judgement(
        metric_key=gate.metric_key,
        at=at,
        mode=gate.mode,
        verdict=verdict,
        reason=why,
        value=value,
        hard_min=gate.hard_min,
        hard_max=gate.hard_max,
    )


def unreadable(gates: Sequence[Gate], why: str) -> list[Judgement]:
    """Every gate of a record that can't be read."""
    return [_without_value(gate, _first_place(gate), Verdict.UNREADABLE, why) for gate in gates]
