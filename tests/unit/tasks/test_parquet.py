from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from parity.errors import ConfigError, DataError
from parity.tasks.config import FileConfig
from parity.tasks.parquet import ParquetSource, _rows_of
from parity.types import Message


def written(tmp_path: Path, columns: dict[str, object], *, group_rows: int = 4) -> Path:
    path = tmp_path / "tasks.parquet"
    parquet.write_table(pyarrow.table(columns), path, row_group_size=group_rows)
    return path


def source(path: Path, **options: object) -> ParquetSource:
    return ParquetSource(FileConfig(name="parquet", path=str(path), **options))


def test_rows_of_every_row_group_are_read_in_any_order(tmp_path: Path) -> None:
    prompts = [f"question {n}" for n in range(11)]
    path = written(tmp_path, {"prompt": prompts, "answer": list(range(11)), "level": [1.5] * 11})
    tasks = source(path, chat=False)
    assert tasks.size == 11
    assert [tasks.task(n).prompt for n in (10, 0, 4, 3)] == [prompts[n] for n in (10, 0, 4, 3)]
    assert tasks.task(9).answer == "9"
    assert tasks.task(9).columns == {"level": 1.5}
    assert tasks.task(9).task_id.startswith("tasks.parquet/10-")
    with pytest.raises(IndexError, match="there is no task -1"):
        tasks.task(-1)


def test_chat_messages_may_carry_empty_fields(tmp_path: Path) -> None:
    messages = [
        [{"role": "user", "content": "a", "name": None}],
        [{"role": "user", "content": "b", "name": None}, {"role": "assistant", "content": "c"}],
    ]
    tasks = source(written(tmp_path, {"prompt": messages}))
    assert tasks.task(1).messages == (Message("user", "b"), Message("assistant", "c"))
    assert tasks.task(1).answer is None


def test_values_without_a_json_form_become_text_or_are_refused(tmp_path: Path) -> None:
    columns = {
        "prompt": ["a"],
        "day": [date(2026, 11, 30)],
        "at": [datetime(2026, 11, 30, 12, tzinfo=UTC)],
        "price": [Decimal("1.50")],
        "nested": [{"list": [1, None], "flag": True}],
        "map": pyarrow.array([[("k", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        "word": pyarrow.array(["x"]).dictionary_encode(),
    }
    path = written(tmp_path, columns)
    assert source(path).task(0).columns == {
        "day": "2026-11-30",
        "at": "2026-11-30T12:00:00+00:00",
        "price": "1.50",
        "nested": {"list": [1, None], "flag": True},
        "map": [["k", 1]],
        "word": "x",
    }
    with pytest.raises(DataError, match="row 1: column 'image' holds bytes, which has no"):
        source(written(tmp_path, {"prompt": ["a"], "image": [b"\x00"]}))


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"prompt": ["a", " ", "c"]}, "column 'prompt' is empty"),
        ({"prompt": ["a", None, "c"]}, "column 'prompt' is null"),
        ({"prompt": ["a", "b", "c"], "x": [0.0, float("nan"), 1.0]}, "holds nan"),
        ({"prompt": ["a", "b", "c"], "answer": [0.5, 0.5, 0.5]}, "column 'answer' is a number"),
        (
            {
                "prompt": pyarrow.StringArray.from_buffers(
                    3,
                    pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"),
                    pyarrow.py_buffer(b"a\xe9c"),
                )
            },
            "can't be read: 'utf-8' codec can't decode byte 0xe9",
        ),
    ],
)
def test_a_bad_row_stops_with_its_number_or_is_passed_over(
    tmp_path: Path, columns: dict[str, object], reason: str
) -> None:
    path = written(tmp_path, columns)
    row = 1 if "answer" in columns else 2
    with pytest.raises(DataError, match=rf"^{path}:row {row}: .*{reason}"):
        source(path)
    if "answer" in columns:
        return
    tasks = source(path, on_bad="skip", max_bad=1)
    assert (tasks.size, tasks.report.num_bad) == (2, 1)
    assert tasks.task(1).task_id.startswith("tasks.parquet/3-")
    with pytest.raises(DataError, match=r"more than tasks\.max_bad=0"):
        source(path, on_bad="skip", max_bad=0)


def test_a_missing_column_lists_the_columns(tmp_path: Path) -> None:
    path = written(tmp_path, {"Prompt": ["a"], "data_source": ["x"]})
    with pytest.raises(ConfigError, match=r"known: Prompt, data_source\. Did you mean 'Prompt'"):
        source(path)


def test_a_repeated_id_names_both_rows(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": ["a"] * 6, "key": ["p", "q", "r", "s", "t", "q"]})
    with pytest.raises(DataError, match="row 6: id 'q' was used in row 2 already"):
        source(path, id_column="key")
    tasks = source(path, id_column="key", on_bad="skip")
    assert [tasks.task(n).task_id for n in range(tasks.size)] == ["p", "q", "r", "s", "t"]


def test_a_damaged_or_foreign_file_is_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": [f"{n}" * 50 for n in range(100)]}, group_rows=50)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(DataError, match="can't be read as Parquet, or it is cut off"):
        source(path)
    path.write_bytes(whole[:4] + b"\xff" * 300 + whole[304:])
    with pytest.raises(DataError, match=r"is damaged|can't be read") as caught:
        source(path)
    assert "\n" not in str(caught.value)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        source(path)
    with pytest.raises(ConfigError, match=r"reads \.parquet or \.pq files; set tasks\.name=jsonl"):
        (tmp_path / "a.jsonl").write_text("{}")
        source(tmp_path / "a.jsonl")


def test_a_file_without_rows_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": pyarrow.array([], pyarrow.string())})
    with pytest.raises(DataError, match="has no record that can be used"):
        source(path)


def test_decoded_row_groups_stay_within_their_budget(tmp_path: Path, monkeypatch) -> None:
    path = written(tmp_path, {"prompt": ["x" * 1000] * 40}, group_rows=10)
    tasks = source(path)
    monkeypatch.setattr("parity.tasks.parquet.CACHE_BYTES", 25_000)
    for index in (0, 15, 25, 35, 3, 14):
        assert tasks.task(index).task_id.startswith(f"tasks.parquet/{index + 1}-")
        assert len(tasks._groups) <= 2
    assert list(tasks._groups) == [0, 1]
    monkeypatch.setattr("parity.tasks.parquet.CACHE_BYTES", 1)
    tasks.task(20)
    assert list(tasks._groups) == [2]


def test_the_check_goes_through_the_file_in_small_batches(tmp_path: Path, monkeypatch) -> None:
    path = written(tmp_path, {"prompt": ["x" * 20] * 3000}, group_rows=3000)
    seen: list[int] = []

    def counted(batch: pyarrow.RecordBatch) -> object:
        seen.append(batch.num_rows)
        return _rows_of(batch)

    monkeypatch.setattr("parity.tasks.parquet._rows_of", counted)
    tasks = source(path)
    assert tasks.size == sum(seen) == 3000
    assert max(seen) <= 1024
    assert not tasks._groups
