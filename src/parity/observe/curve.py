"""A metric over steps, as text for the terminal and as a PNG.

Used by `parity curve`, the end of a run and docs; `trackers/jsonl.py: read_rows` brings the rows
of a run folder. Invariant: unknown values leave gaps, they're never drawn as 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from parity.errors import DataError

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row][column] of one cell
_BLOCKS = " " + "".join(map(chr, range(0x2581, 0x2589)))  # lower eighths
_ASCII_BLOCKS = " .:-=+*#@"


@dataclass(frozen=True, slots=True)
class Point:
    """One known value of a metric."""

    step: int
    value: float


def series(rows: Sequence[Mapping[str, float | None]], name: str) -> list[Point]:
    """The known, finite values of one metric, in the order of `rows`."""
    found: list[Point] = []
    for row in rows:
        step, value = row.get("step"), row.get(name)
        if step is not None and isinstance(value, int | float) and math.isfinite(value):
            found.append(Point(int(step), float(value)))
    return found


def sparkline(values: Sequence[float], *, width: int, is_ascii: bool = False) -> str:
    """The last values as a row of at most `width` blocks; longer runs are averaged."""
    if not values or width < 1:
        return ""
    blocks = _ASCII_BLOCKS if is_ascii else _BLOCKS
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    top = len(blocks) - 1
    if high - low <= 1e-12 * max(1.0, abs(high)):
        return blocks[top // 2] * count
    return "".join(blocks[1 + round((mean - low) / (high - low) * (top - 1))] for mean in means)


def draw(
    points: Sequence[Point],
    *,
    title: str,
    width: int = 72,
    height: int = 12,
    is_ascii: bool = False,
) -> str:
    """The curve as lines of text, `width` columns at most, with its scale.

    Args:
        points: at least one gives a curve, none a sentence that says so.
        is_ascii: for terminals that can't show braille.
    """
    if not points:
        return f"{title}: no values"
    points = sorted(points, key=lambda point: point.step)
    low, high = min(p.value for p in points), max(p.value for p in points)
    labels = [f"{high:.4g}", f"{low:.4g}"]
    margin = max(map(len, labels)) + 1
    columns = max(8, width - margin - 1)
    cells = (1, 1) if is_ascii else (2, 4)
    lit = _trace(points, width=columns * cells[0], height=height * cells[1])
    rows = _ascii_rows(lit, columns, height) if is_ascii else _braille_rows(lit, columns, height)
    edge = "|" if is_ascii else "\u2502"
    lines = [title]
    for index, row in enumerate(rows):
        label = labels[0] if index == 0 else labels[1] if index == height - 1 else ""
        lines.append(f"{label:>{margin - 1}} {edge}{row}".rstrip())
    first, last = str(points[0].step), f"step {points[-1].step}"
    gap = max(1, columns - len(first) - len(last))
    lines.append(" " * (margin + 1) + first + " " * gap + last)
    return "\n".join(lines)


def write_png(
    path: Path, curves: Mapping[str, Sequence[Point]], *, title: str, y_label: str = ""
) -> Path:
    """Draw one line per entry of `curves` into a PNG file; its path.

    Raises DataError where no curve has a point.
    """
    if not any(curves.values()):
        raise DataError(f"{title}: no curve has a value; run some steps first.")
    # Matplotlib takes a second to import and is wanted only here.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, points in curves.items():
        marker = "o" if len(points) < 25 else None
        axes.plot([p.step for p in points], [p.value for p in points], marker=marker, label=name)
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.set_ylabel(y_label)
    axes.grid(visible=True, alpha=0.3)
    if len(curves) > 1:
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def _trace(points: Sequence[Point], *, width: int, height: int) -> set[tuple[int, int]]:
    """The dots (x, y from the top) of the line through `points`."""
    low, high = min(p.value for p in points), max(p.value for p in points)
    first, last = points[0].step, points[-1].step

    def place(point: Point) -> tuple[int, int]:
        x = (point.step - first) / (last - first) if last > first else 0.0
        y = (point.value - low) / (high - low) if high > low else 0.5
        return round(x * (width - 1)), round((1 - y) * (height - 1))

    placed = [place(point) for point in points]
    lit = set(placed)
    for (x0, y0), (x1, y1) in pairwise(placed):
        count = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(count + 1):
            lit.add((round(x0 + (x1 - x0) * i / count), round(y0 + (y1 - y0) * i / count)))
    return lit


def _braille_rows(lit: set[tuple[int, int]], columns: int, height: int) -> list[str]:
    cells = [[0] * columns for _ in range(height)]
    for x, y in lit:
        cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    return ["".join(chr(_BRAILLE + cell) if cell else " " for cell in row) for row in cells]


def _ascii_rows(lit: set[tuple[int, int]], columns: int, height: int) -> list[str]:
    return ["".join("*" if (x, y) in lit else " " for x in range(columns)) for y in range(height)]
