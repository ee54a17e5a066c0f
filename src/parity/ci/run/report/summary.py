"""The Markdown summary of a shard, for the page of a CI run. Says first what went wrong.

Text of tests is shown as code, so that nothing in it becomes markup or a mention.
"""

from collections import Counter
from collections.abc import Sequence

from parity.ci.gates.judge import Judgement
from parity.ci.run.result import GOOD, FileResult, Outcome, ShardResult

_SHOWN_CHARACTERS = 240
_TAIL_LINES = 25
_TAIL_LINE_CHARACTERS = 300
_ROWS = 300  # of a table: a CI service shows no summary of more than 1 MiB
_FAILURES = 30


def summary(shard: ShardResult) -> str:
    """The whole summary."""
    parts = [_head(shard), _files(shard.files), _failures(shard.files), _gates(shard.files)]
    if shard.skipped:
        rows = [(s.registration.path, s.reason.kind.value, s.reason.text) for s in shard.skipped]
        table = _table(("not planned", "kind", "reason"), rows)
        parts.append(
            f"<details><summary>{len(rows)} tests are not planned here</summary>\n\n{table}\n\n"
            "</details>"
        )
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(shard: ShardResult) -> str:
    is_good = shard.exit_code == 0
    counts = Counter(file.outcome for file in shard.files)
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
    lines = [
        f"### {'Passed' if is_good else 'Failed'}: {shard.suite} on {shard.backend},"
        f" shard {shard.shard + 1} of {shard.num_shards}",
        "",
        f"{told or 'Nothing ran'}; {sum(file.time_s for file in shard.files):.0f} s.",
    ]
    if shard.devices:
        lines.append(f"Devices: {', '.join(map(str, shard.devices))}.")
    flaky = [file for file in shard.files if file.is_flaky]
    if flaky and shard.flake_rate is not None:
        lines.append(
            f"**{len(flaky)} passed only after a retry** ({shard.flake_rate:.0%} of the passes)."
        )
    for problem in (shard.trouble, shard.empty_problem):
        if problem is not None:
            lines.append(f"**{_code(problem)}**")
    if shard.allow_empty is not None and not shard.ran:
        lines.append(f"Nothing had to run: {_code(shard.allow_empty)}")
    if not shard.files and not shard.allow_empty and not shard.empty_problem:
        lines.append("Nothing ran, and each test below says why.")
    lines += [f"Note: {_code(note)}" for note in shard.notes]
    return "\n".join(lines)


def _files(files: Sequence[FileResult]) -> str:
    if not files:
        return ""
    rows = [
        (
            file.path,
            "pass after a retry" if file.is_flaky else file.outcome.value,
            f"{file.time_s:.1f} s ({file.est_time_s:.4g} estimated)",
            str(len(file.attempts)),
            _tests(file),
            file.reason or "; ".join(f"left behind: {text}" for text in _leftovers(file)),
        )
        for file in sorted(files, key=lambda file: file.outcome in GOOD)  # what failed first
    ]
    return _table(("file", "result", "time", "attempts", "tests", "reason"), rows)


def _tests(file: FileResult) -> str:
    counts = file.attempts[-1].counts if file.attempts else None
    if counts is None:
        return ""
    return f"{counts.num_passed} of {counts.total} passed, {counts.num_skipped} skipped"


def _leftovers(file: FileResult) -> list[str]:
    return [text for attempt in file.attempts for text in attempt.leftovers]


def _failures(files: Sequence[FileResult]) -> str:
    """The last lines of what failed."""
    shown = [file for file in files if file.outcome not in GOOD and file.attempts][:_FAILURES]
    parts: list[str] = []
    for file in shown:
        last = file.attempts[-1]
        lines = [line[:_TAIL_LINE_CHARACTERS] for line in last.tail.splitlines()[-_TAIL_LINES:]]
        text = "\n".join(f"    {line}" for line in lines)  # an indented block can't be closed
        parts.append(
            f"<details><summary>end of the output of <code>{_escaped(file.path)}</code></summary>"
            f"\n\n{text}\n\n{_code(last.log_path)}\n\n</details>"
        )
    return "\n\n".join(parts)


def _gates(files: Sequence[FileResult]) -> str:
    judged = [(file, judgement) for file in files for judgement in file.judgements]
    rows = [_gate(*each) for each in sorted(judged, key=lambda each: each[1].is_good)]
    if not rows:
        return ""
    return _table(("gate", "at", "mode", "verdict", "value", "band", "bound", "reason"), rows)


def _gate(file: FileResult, judged: Judgement) -> tuple[str, ...]:
    return (
        f"{file.path} {judged.metric_key}",
        judged.at,
        judged.mode,
        judged.verdict.value,
        "" if judged.value is None else f"{judged.value:.6g}",
        _range(judged.low, judged.high),
        _range(judged.hard_min, judged.hard_max),
        judged.reason,
    )


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    return f"{'' if low is None else f'{low:.6g}'} .. {'' if high is None else f'{high:.6g}'}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(_code(cell) for cell in row) for row in rows[:_ROWS]]
    table = "\n".join(f"| {line} |" for line in lines)
    more = len(rows) - _ROWS
    return table if more <= 0 else f"{table}\n\n... and {more} more in results.json."


def _code(text: str) -> str:
    """One line of code; what would end it or a table cell is replaced."""
    text = text.encode("utf-8", "backslashreplace").decode()  # of a file name that is no text
    line = " ".join(text.split()).replace("`", "'").replace("|", "/")
    if len(line) > _SHOWN_CHARACTERS:
        line = f"{line[:_SHOWN_CHARACTERS]} ..."
    return f"`{line}`" if line else ""


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
