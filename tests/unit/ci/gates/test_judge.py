"""What gates say of seeded series: a jump, a slow drift, NaN, a missing key, a new series."""

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.ci.gates.cases import PLACE, gate, measured, run

from parity.ci.gates.explain import explain
from parity.ci.gates.gate import Band, Gate
from parity.ci.gates.history import Point
from parity.ci.gates.judge import Judge, Judgement, Verdict, judge_value
from parity.ci.gates.record import Recorded
from parity.ci.gates.stores import open_history

FINITE = st.floats(-1e6, 1e6)


def points(values: list[float]) -> list[Point]:
    return [Point(value, f"run-{n}", "c") for n, value in enumerate(values)]


BIG = 1.7e308


@pytest.mark.parametrize(
    ("values", "history", "verdict"),
    [
        ([BIG, BIG], [BIG, BIG, BIG], Verdict.PASS),
        ([BIG], [BIG, 1e308, BIG, 1.2e308], Verdict.PASS),
        ([-BIG], [BIG, BIG, BIG], Verdict.OUT_OF_BAND),
        ([1.0], [BIG, BIG, BIG], Verdict.OUT_OF_BAND),
        ([5e-324], [0.0, 0.0, 0.0], Verdict.PASS),
        ([-0.0], [0.0, -0.0, 0.0], Verdict.PASS),
        ([math.inf, -math.inf], [1.0, 1.0, 1.0], Verdict.NON_FINITE),
        ([math.nan, BIG], [1.0, 1.0, 1.0], Verdict.NON_FINITE),
    ],
)
def test_numbers_at_the_edge_of_floats_are_judged_and_drawn(
    values: list[float], history: list[float], verdict: Verdict, tmp_path: Path
) -> None:
    store = open_history(str(tmp_path / "history.db"))
    for number, value in enumerate(history):
        store.write(run(number), [measured(value, at="mean")], [])
    rows = [Recorded("grad_norm", step, value) for step, value in enumerate(values)]
    (found,) = record([gate(steps="mean")], rows, history=store)
    assert found.verdict is verdict, found
    recent = [Point(value, "r", "c") for value in history]
    lines = explain(PLACE, found, recent, width=80)
    assert not any(
        "nan" in line for line in lines if "value" not in line and "not finite" not in line
    )
    assert "Infinity" not in json.dumps([found.low, found.high])


def series(number: int, seed: int = 3) -> list[float]:
    noise = random.Random(seed)
    return [1.0 + noise.gauss(0, 0.02) for _ in range(number)]


def judged(value: float, history: list[float], **options: float | None) -> Judgement:
    found = gate(**options)  # pyright: ignore[reportArgumentType]
    return judge_value(found, "last", value, points(history), least=3, has_store=True)


def record(gates: list[Gate], rows: list[Recorded], **store: object) -> list[Judgement]:
    judge = Judge(store.get("history"), limit=20, least=3)  # pyright: ignore[reportArgumentType]
    return judge.record(gates, rows, PLACE)


@pytest.mark.parametrize("value", [2.0, 0.2, -1.0])
def test_a_jump_in_either_direction_fails(value: float) -> None:
    found = judged(value, series(20))
    assert found.verdict is Verdict.OUT_OF_BAND
    assert found.blocks
    assert "outside" in found.reason


def test_what_varies_as_before_passes() -> None:
    assert all(judged(value, series(20)).verdict is Verdict.PASS for value in series(50, seed=4))


def test_a_slow_drift_passes_every_band_and_is_caught_by_the_hard_bound() -> None:
    history = series(20)
    verdicts: list[Verdict] = []
    for _ in range(200):
        value = history[-1] * 1.01
        found = judged(value, history[-20:], hard_max=3.0)
        verdicts.append(found.verdict)
        if found.is_good:
            history.append(value)
        else:
            break
    assert set(verdicts[:-1]) == {Verdict.PASS}
    assert verdicts[-1] is Verdict.OUT_OF_BOUND
    assert history[-1] <= 3.0


def test_the_reference_is_the_median_so_one_odd_value_moves_it_little() -> None:
    found = judged(1.0, [*series(10), 1.4, 1000.0])
    assert found.reference == pytest.approx(1.0, abs=0.05)


def test_a_new_series_is_neither_a_pass_nor_a_failure_and_its_hard_bound_holds() -> None:
    found = judged(50.0, [1.0, 1.0])
    assert (found.verdict, found.blocks) == (Verdict.NEW, False)
    assert found.reason == "2 of 3 trusted values so far"
    assert judged(50.0, [], hard_max=10.0).verdict is Verdict.OUT_OF_BOUND
    assert judged(-50.0, [], hard_min=0.0).verdict is Verdict.OUT_OF_BOUND


def test_without_a_store_the_hard_bound_alone_is_judged_and_that_is_said() -> None:
    found = record([gate()], [Recorded("grad_norm", 1, 5.0)])[0]
    assert (found.verdict, found.blocks) == (Verdict.UNJUDGED, False)
    only_bound = gate(band=None, hard_max=4.0)
    assert record([only_bound], [Recorded("grad_norm", 1, 5.0)])[0].blocks
    assert record([only_bound], [Recorded("grad_norm", 1, 3.0)])[0].verdict is Verdict.PASS


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_an_error_of_its_own(value: float) -> None:
    found = record([gate()], [Recorded("grad_norm", 1, value)])[0]
    assert found.verdict is Verdict.NON_FINITE
    assert found.blocks


def test_a_nan_in_one_step_makes_the_mean_not_finite() -> None:
    rows = [Recorded("grad_norm", 0, 1.0), Recorded("grad_norm", 1, math.nan)]
    assert record([gate(steps="mean")], rows)[0].verdict is Verdict.NON_FINITE


def test_a_missing_key_is_an_error_that_names_what_was_recorded() -> None:
    found = record([gate()], [Recorded("loss", 1, 1.0)])[0]
    assert (found.verdict, found.value) == (Verdict.MISSING, None)
    assert "it recorded loss" in found.reason
    assert "it recorded nothing" in record([gate()], [])[0].reason


def test_a_missing_step_is_missing_and_the_others_are_judged() -> None:
    found = record([gate(steps=(1, 9))], [Recorded("grad_norm", 1, 1.0)])
    assert [(j.at, j.verdict) for j in found] == [
        ("step 1", Verdict.UNJUDGED),
        ("step 9", Verdict.MISSING),
    ]


@pytest.mark.parametrize("steps", ["last", "all", "mean", (1,)])
def test_a_step_recorded_twice_is_an_error(steps: str) -> None:
    rows = [Recorded("grad_norm", 1, 1.0), Recorded("grad_norm", 1, 1.0)]
    found = record([gate(steps=steps)], rows)  # pyright: ignore[reportArgumentType]
    assert [j.verdict for j in found] == [Verdict.DUPLICATE]


def test_the_last_step_is_the_highest_not_the_last_line() -> None:
    rows = [Recorded("grad_norm", 2, 5.0), Recorded("grad_norm", 1, 1.0)]
    assert record([gate()], rows)[0].value == 5.0


def test_every_step_is_a_series_and_one_that_is_gone_is_missing(tmp_path: Path) -> None:
    history = open_history(str(tmp_path / "h.db"))
    for number in range(4):
        values = [measured(10.0**step, at=f"step {step}") for step in range(3)]
        history.write(run(number), values, [])
    rows = [Recorded("grad_norm", 0, 1.0), Recorded("grad_norm", 1, 100.0)]
    found = record([gate(steps="all")], rows, history=history)
    assert [(j.at, j.verdict) for j in found] == [
        ("step 0", Verdict.PASS),
        ("step 1", Verdict.OUT_OF_BAND),
        ("step 2", Verdict.MISSING),
    ]


def test_a_gate_in_shadow_reports_the_same_and_blocks_nothing() -> None:
    shadow = gate(mode="shadow")
    found = record([shadow], [Recorded("grad_norm", 1, math.nan)])[0]
    assert (found.verdict, found.is_good, found.blocks) == (Verdict.NON_FINITE, False, False)


@given(
    reference=FINITE,
    value=FINITE,
    sides=st.tuples(*[st.floats(0, 10)] * 4),
)
def test_the_band_is_what_its_formula_says(
    reference: float, value: float, sides: tuple[float, float, float, float]
) -> None:
    rel_up, abs_up, rel_down, abs_down = sides
    band = Band(*sides)
    found = judge_value(
        gate(band=band), "last", value, points([reference] * 3), least=3, has_store=True
    )
    up = max(rel_up * abs(reference), abs_up)
    down = max(rel_down * abs(reference), abs_down)
    assert (found.verdict is Verdict.PASS) == (reference - down <= value <= reference + up)


@given(values=st.lists(FINITE, min_size=3, max_size=30), value=FINITE)
def test_order_of_history_changes_no_verdict(values: list[float], value: float) -> None:
    assert judged(value, values).verdict is judged(value, values[::-1]).verdict
