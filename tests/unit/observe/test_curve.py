import math
import subprocess
import sys
from pathlib import Path

import pytest

from parity.errors import DataError
from parity.observe.curve import Point, draw, series, sparkline, write_png

RISING = [Point(step, step / 10) for step in range(11)]


def test_unknown_values_are_gaps_and_not_zero() -> None:
    rows = [
        {"step": 1, "eval/accuracy": 0.5},
        {"step": 2, "eval/accuracy": None},
        {"step": 3, "eval/accuracy": math.nan},
        {"step": 4},
        {"eval/accuracy": 0.1},
        {"step": 5, "eval/accuracy": 0.75},
    ]
    assert series(rows, "eval/accuracy") == [Point(1, 0.5), Point(5, 0.75)]


@pytest.mark.parametrize("width", [1, 3, 8, 200])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_sparkline_fits_and_rises_with_its_values(width: int, is_ascii: bool) -> None:  # noqa: FBT001
    line = sparkline([float(n) for n in range(40)], width=width, is_ascii=is_ascii)
    assert len(line) == min(width, 40)
    assert line.isascii() == is_ascii
    blocks = " .:-=+*#@" if is_ascii else " " + "".join(map(chr, range(0x2581, 0x2589)))
    heights = [blocks.index(block) for block in line]
    assert heights == sorted(heights)
    if width > 2:
        assert (heights[0], heights[-1]) == (1, 8)


def test_a_sparkline_of_nothing_or_of_equal_values() -> None:
    assert sparkline([], width=9) == ""
    assert sparkline([0.5], width=0) == ""
    assert len(set(sparkline([0.5] * 7, width=9))) == 1
    assert len(set(sparkline([0.0] * 7, width=9))) == 1


@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize("width", [20, 60, 120])
def test_a_curve_fits_and_goes_from_corner_to_corner(is_ascii: bool, width: int) -> None:  # noqa: FBT001
    text = draw(RISING, title="accuracy", width=width, height=6, is_ascii=is_ascii)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    assert lines[0] == "accuracy"
    assert len(lines) == 8
    assert text.isascii() == is_ascii
    assert lines[1].lstrip().startswith("1 ")
    assert lines[6].lstrip().startswith("0 ")
    assert lines[1].rstrip()[-1] != " "
    assert len(lines[1].rstrip()) > len(lines[6].rstrip())
    assert lines[7].split() == ["0", "step", "10"]


def test_a_hand_drawn_ascii_curve() -> None:
    text = draw([Point(0, 0), Point(8, 1)], title="t", width=13, height=3, is_ascii=True)
    assert text.splitlines()[1:4] == ["1 |       ***", "  |   ****", "0 |***"]


def test_braille_dots_stand_where_the_points_are() -> None:
    text = draw([Point(0, 1.0), Point(1, 0.0)], title="t", width=11, height=1)
    row = text.splitlines()[1].split("\u2502")[1]
    assert ord(row[0]) & 0x01  # top left
    assert ord(row[-1]) & 0x80  # bottom right


@pytest.mark.parametrize("points", [[Point(3, 0.5)], [Point(1, 2.0), Point(9, 2.0)]])
def test_one_point_and_a_flat_line_are_drawn(points: list[Point]) -> None:
    assert "*" in draw(points, title="t", is_ascii=True)
    draw(points, title="t")


def test_no_values_give_a_sentence() -> None:
    assert draw([], title="accuracy") == "accuracy: no values"


def test_a_png_is_written(tmp_path: Path) -> None:
    path = write_png(
        tmp_path / "deep" / "curve.png", {"accuracy": RISING, "none": []}, title="a run"
    )
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(content) > 5000


def test_a_png_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no curve has a value"):
        write_png(tmp_path / "curve.png", {"accuracy": []}, title="a run")
    assert not (tmp_path / "curve.png").exists()


def test_matplotlib_is_imported_only_for_a_png() -> None:
    code = (
        "import sys; from parity.observe.curve import draw, Point; draw([Point(1, 2)], title='t');"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
