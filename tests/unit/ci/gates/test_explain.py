"""What a person reads of a gate."""

from hypothesis import given
from hypothesis import strategies as st
from unit.ci.gates.cases import PLACE, gate

from parity.ci.gates.explain import explain
from parity.ci.gates.history import Point
from parity.ci.gates.judge import judge_value
from parity.ci.gates.plot import HEIGHT, plot

FINITE = st.floats(-1e12, 1e12)


def test_value_band_bound_history_and_verdict_are_all_told_and_drawn() -> None:
    history = [Point(1.0 + n / 100, f"run-{n}", "c") for n in range(12)]
    recent = [*history, Point(9.0, "run-bad", "c", is_trusted=False)]
    judged = judge_value(gate(hard_max=8.0), "last", 2.5, history, least=3, has_store=True)
    text = "\n".join(explain(PLACE, judged, recent, width=80))
    assert "grad_norm at last of tests/test_train.py (cpu, fast)" in text
    assert "verdict    out of band, enforced: 2.5 is outside 0.5275 to 1.5825" in text
    assert "reference  1.055 (median of 12 trusted values (..., 1.04," in text
    assert "hard bound none to 8" in text
    assert "drift      from 1 to 1.11 (+11.0%)" in text
    picture = text.splitlines()[-HEIGHT - 1 : -1]
    assert "".join(picture).count("o") == 12
    assert "".join(picture).count("x") == 1
    assert "".join(picture).count("#") == 1
    assert any("---" in line for line in picture)
    assert any("===" in line for line in picture)


def test_what_is_unknown_is_called_none() -> None:
    judged = judge_value(gate(), "last", 0.0, [], least=3, has_store=True)
    text = "\n".join(explain(PLACE, judged, [], width=80))
    assert "value      0\n" in text
    assert "band       none to none" in text


@given(
    history=st.lists(st.tuples(FINITE, st.booleans()), max_size=200),
    current=st.none() | st.floats(),
    band=st.tuples(st.none() | FINITE, st.none() | FINITE),
    width=st.integers(16, 120),
)
def test_a_plot_is_never_wider_than_asked_nor_without_its_value(
    history: list[tuple[float, bool]],
    current: float | None,
    band: tuple[float | None, float | None],
    width: int,
) -> None:
    lines = plot(history, current, band=band, bounds=(None, None), width=width)
    assert len(lines) in (0, HEIGHT + 1)
    drawn = "".join(line.split("|", 1)[1] for line in lines[:-1])
    assert all(len(line.split("|", 1)[1]) <= width + 1 for line in lines[:-1])
    is_finite = current is not None and abs(current) < float("inf")
    assert drawn.count("#") == (1 if is_finite else 0)
