"""Draws the derived numbers of a config as an aligned table of plain text."""

from collections.abc import Sequence

from parity.config.arithmetic import Derived, SftDerived

Row = tuple[str, str, str]  # what, number, how it follows


def as_lines(derived: Derived | SftDerived) -> list[str]:
    """The table, one line per number, then the notes."""
    rows = _train_rows(derived) if isinstance(derived, Derived) else _sft_rows(derived)
    threads = derived.threads
    rows.append(
        ("threads trainer + engine", f"{threads.trainer} + {threads.engine}", threads.reason)
    )
    names = max(len(row[0]) for row in rows)
    numbers = max(len(row[1]) for row in rows)
    lines = [f"{name:<{names}}  {number:>{numbers}}  {why}" for name, number, why in rows]
    placement = derived.placement if isinstance(derived, Derived) else ()
    return ["Derived:", *lines, *placement, *_note_lines(derived.notes)]


def _train_rows(derived: Derived) -> list[Row]:
    return [
        ("episodes per step", f"{derived.episodes_per_step:,}", "groups_per_step x group_size"),
        (
            "groups in flight",
            f"{derived.capacity_groups:,}",
            "groups_per_step x steps_per_publish x (1 + max_lag), at most",
        ),
        ("episodes in flight", f"{derived.capacity_episodes:,}", "at most"),
        ("token age", f"{derived.max_token_age:,}", "versions at training, at most: max_lag, up"),
        ("engine slots", f"{derived.engine_slots:,}", "episodes decoded side by side, at most"),
        ("tokens per episode", f"{derived.max_episode_tokens:,}", "prompt + answer, at most"),
        ("tokens per step", f"{derived.max_tokens_per_step:,}", "at most"),
        ("publications", f"{derived.publications:,}", "starting weights included"),
        ("groups in all", f"{derived.total_groups:,}", "steps x groups_per_step"),
        ("episodes in all", f"{derived.total_episodes:,}", "steps x episodes per step"),
        ("evaluations", f"{derived.evaluations:,}", "first and last included"),
        ("answers per evaluation", f"{derived.eval_episodes:,}", "num_tasks x samples_per_task"),
    ]


def _sft_rows(derived: SftDerived) -> list[Row]:
    return [
        ("examples in all", f"{derived.total_examples:,}", "steps x batch_size"),
        ("tokens per example", f"{derived.max_example_tokens:,}", "prompt + answer, at most"),
        ("tokens per step", f"{derived.max_tokens_per_step:,}", "at most"),
        ("evaluations", f"{derived.evaluations:,}", "first and last included"),
        ("answers per evaluation", f"{derived.eval_episodes:,}", "num_tasks x samples_per_task"),
    ]


def _note_lines(notes: Sequence[str]) -> list[str]:
    return [f"Note: {note}." for note in notes]
