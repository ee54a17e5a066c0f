"""From a record of a file to a task: one rule for every file format.

Used by `jsonl.py` and `parquet.py`. A record is a mapping of columns to JSON values. Its
prompt column holds text, or a list of {role, content} messages; its answer column holds text,
a whole number (written out) or null. Every record of a file has the answer column, or none
has. Invariant: a record becomes exactly the task that it says, or a `place: reason`; nothing
is guessed, cut or left out.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from numpy.typing import NDArray

from parity.errors import ConfigError, DataError
from parity.registry import known
from parity.tasks.config import FileConfig
from parity.types import Json, Message, Task

MAX_REASONS = 5  # bad records that are told in full

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileReport:
    """What the pass over a file found."""

    num_tasks: int
    num_bad: int
    reasons: tuple[str, ...]  # the first few `place: reason`


class BadRecords:
    """Counts unusable records under the policy of the run file."""

    def __init__(self, config: FileConfig) -> None:
        self._config = config
        self._drawn: set[int] = set()
        self.count = 0
        self.reasons: list[str] = []

    def add(self, place: str, reason: str) -> None:
        """Count one record; raises DataError where the policy is at its end."""
        said = f"{place}: {reason}"
        if self._config.on_bad == "stop":
            raise DataError(f"{said}. (tasks.on_bad=skip passes over such records.)")
        self.count += 1
        if len(self.reasons) < MAX_REASONS:
            self.reasons.append(said)
        if self.count > self._config.max_bad:
            raise DataError(
                f"more than tasks.max_bad={self._config.max_bad} records can't be used; the first"
                f" of them: {'; '.join(self.reasons)}."
            )

    def pass_over(self, index: int, place: str, error: DataError) -> None:
        """Count a record that turns out to be unusable when it is drawn, as `add` does; once."""
        if index in self._drawn:
            return
        reason = str(error).removeprefix(f"{place}: ")
        self.add(place, reason)
        self._drawn.add(index)
        logger.warning("tasks_skipped place=%s reason=%s", place, reason)

    def report(self, path: Path, num_tasks: int) -> FileReport:
        """Say what was found; raises DataError where no task is left."""
        if num_tasks == 0:
            said = f" ({'; '.join(self.reasons)})" if self.count else ""
            raise DataError(f"{path} has no record that can be used{said}.")
        logger.info("tasks_indexed file=%s tasks=%d bad=%d", path, num_tasks, self.count)
        if self.count:
            logger.warning("tasks_skipped file=%s first=%s", path, "; ".join(self.reasons))
        return FileReport(num_tasks, self.count, tuple(self.reasons))


class RecordReader:
    """Makes tasks of the records of one file."""

    def __init__(self, config: FileConfig, path: Path) -> None:
        self._config = config
        self._path = path
        self._has_answers: bool | None = None  # None until the first record was seen

    @property
    def has_learned(self) -> bool:
        """Whether the columns of the file are known."""
        return self._has_answers is not None

    def learn(self, columns: Sequence[str], place: str) -> None:
        """Take the columns of the first record; raises ConfigError where one is missing."""
        for key, column in (
            ("prompt_column", self._config.prompt_column),
            ("id_column", self._config.id_column),
        ):
            if column is not None and column not in columns:
                raise ConfigError(
                    f"tasks.{key} is {column!r}, but {place} has no such column; set tasks.{key};"
                    f" {known(column, columns)}"
                )
        self._has_answers = self._config.answer_column in columns
        if not self._has_answers:
            logger.warning(
                "tasks_without_answers file=%s answer_column=%s columns=%s",
                self._path,
                self._config.answer_column,
                ",".join(columns),
            )

    def check(self, record: Mapping[str, Json]) -> int:
        """The hash of a record's id (0 without an id column).

        Raises DataError, with the reason alone, where `task` would.
        """
        self._prompt(record)
        self._answer(record)
        return 0 if self._config.id_column is None else _id_hash(self._own_id(record))

    def task(self, record: Mapping[str, Json], row: int) -> Task:
        """The task that a record says; raises DataError with the reason alone.

        Args:
            row: number of the record in its file, from 1.
        """
        prompt, messages = self._prompt(record)
        taken = (self._config.prompt_column, self._config.answer_column)
        has_own_id = self._config.id_column is not None
        numbered = "" if has_own_id else f"{self._path.name}/{row}-{digest(record)}"
        return Task(
            task_id=numbered or self._own_id(record),
            prompt=prompt,
            messages=messages,
            answer=self._answer(record),
            columns={key: value for key, value in record.items() if key not in taken},
        )

    def _prompt(self, record: Mapping[str, Json]) -> tuple[str | None, tuple[Message, ...] | None]:
        """Plain text or chat messages; the other one is None."""
        name, config = self._config.prompt_column, self._config
        if name not in record:
            raise DataError(f"has no column {name!r}")
        value = record[name]
        if isinstance(value, str):
            if not value.strip():
                raise DataError(f"column {name!r} is empty; a prompt needs text")
            if config.chat is False:
                return value, None
            messages = (Message("user", value),)
        elif isinstance(value, list):
            if config.chat is False:
                raise DataError(
                    f"column {name!r} holds chat messages, which can't be sent as plain text; set"
                    " tasks.chat=true, and model.chat_template if the tokenizer has no template"
                )
            messages = _messages(name, value)
        else:
            raise DataError(f"column {name!r} is {kind(value)}; it must be text or messages")
        if config.system is not None:
            if messages[0].role == "system":
                raise DataError(
                    f"column {name!r} begins with a system message already; set tasks.system=null"
                )
            messages = (Message("system", config.system), *messages)
        return None, messages

    def _answer(self, record: Mapping[str, Json]) -> str | None:
        name = self._config.answer_column
        if (name in record) != self._has_answers:
            have, first = ("no", "has") if self._has_answers else ("a", "lacks")
            raise DataError(f"has {have} column {name!r}, which the first record {first}")
        value = record.get(name)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise DataError(
            f"column {name!r} is {kind(value)}; it must be text, a whole number or null"
        )

    def _own_id(self, record: Mapping[str, Json]) -> str:
        name = self._config.id_column or ""
        value = record.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value:
            return value
        raise DataError(f"column {name!r} is {kind(value)}; an id must be text or a whole number")


def checked_path(config: FileConfig, suffixes: Mapping[str, str]) -> Path:
    """The file of the config; raises ConfigError in one sentence where it can't be one.

    Args:
        suffixes: what `tasks.name` reads, and what to do about other known suffixes
            (an empty text: it is read).
    """
    if config.path is None:
        raise ConfigError(f"tasks.path is not set; tasks.name={config.name} needs a file.")
    path = Path(config.path).expanduser()
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if suffixes.get(p.suffix.lower()) == "")
        hint = f"one of {', '.join(inside[:5])}" if inside else "a file"
        raise ConfigError(f"tasks.path is {path}, which is a folder; give {hint}.")
    if not path.exists():
        raise ConfigError(f"tasks.path is {path}, but there is no such file (in {Path.cwd()}).")
    remedy = suffixes.get(path.suffix.lower())
    if remedy != "":
        read = " or ".join(suffix for suffix, said in suffixes.items() if said == "")
        raise ConfigError(
            f"tasks.path is {path}, but tasks.name={config.name} reads {read} files;"
            f" {remedy or 'rename the file if it is one'}."
        )
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; it must hold at least one record.")
    return path


def digest(record: Mapping[str, Json]) -> str:
    """A short digest of what a record says, whatever the order of its keys."""
    text = json.dumps(record, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=4).hexdigest()


def repeated(
    hashes: NDArray[numpy.uint64], id_at: Callable[[int], str]
) -> list[tuple[int, int, str]]:
    """Records whose id came before, in order, as (first record, this record, id).

    Args:
        hashes: of each record's id.
        id_at: reads one id; asked only where two hashes are equal.
    """
    order = numpy.argsort(hashes, kind="stable")
    ordered = hashes[order]
    is_again = numpy.flatnonzero(ordered[1:] == ordered[:-1])
    found: list[tuple[int, int, str]] = []
    firsts: dict[tuple[int, str], int] = {}
    for place in numpy.union1d(is_again, is_again + 1).tolist():
        record = int(order[place])
        task_id = id_at(record)
        first = firsts.setdefault((int(ordered[place]), task_id), record)
        if first != record:
            found.append((first, record, task_id))
    return sorted(found, key=lambda item: item[1])


def kind(value: Json) -> str:
    """What a JSON value is, in words for an error."""
    if value is None:
        return "null"
    words = {bool: "true or false", int: "a number", float: "a number", str: "text"}
    words |= {list: "a list", dict: "an object"}
    return words[type(value)]


def _id_hash(task_id: str) -> int:
    """64 bits that stand for an id while a file is indexed."""
    return int.from_bytes(hashlib.blake2b(task_id.encode("utf-8"), digest_size=8).digest(), "big")


def _messages(name: str, items: Sequence[Json]) -> tuple[Message, ...]:
    """Chat messages of a prompt column."""
    if not items:
        raise DataError(f"column {name!r} is an empty list; a prompt needs messages")
    messages = tuple(_message(f"message {n} of column {name!r}", m) for n, m in enumerate(items, 1))
    if not any(message.content.strip() for message in messages):
        raise DataError(f"column {name!r} has only empty messages; a prompt needs text")
    return messages


def _message(what: str, item: Json) -> Message:
    if not isinstance(item, dict):
        raise DataError(f"{what} is {kind(item)}; it must be an object {{role, content}}")
    # Columnar files give every message every field; those without a value say nothing.
    extra = sorted(key for key, value in item.items() if value is not None)
    extra = [key for key in extra if key not in ("role", "content")]
    if extra:
        raise DataError(f"{what} has {', '.join(extra)}; only role and content can be sent")
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or not role:
        raise DataError(f"{what} has a role that is {kind(role)}; it must be text")
    if not isinstance(content, str):
        raise DataError(f"{what} has a content that is {kind(content)}; it must be text")
    return Message(role, content)
