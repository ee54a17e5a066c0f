import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parity.errors import ConfigError, DataError
from parity.tasks.config import FileConfig
from parity.tasks.jsonl import JsonlSource, parse_line
from parity.types import Message

GOOD = b'{"prompt": "2+2?", "answer": "4", "level": 1}\n'


def written(tmp_path: Path, content: bytes, name: str = "tasks.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def source(path: Path, **options: object) -> JsonlSource:
    return JsonlSource(FileConfig(path=str(path), **options))


def test_a_record_becomes_a_task_with_every_other_column(tmp_path: Path) -> None:
    line = {"answer": "4", "prompt": "2+2?", "level": 1, "tags": ["a", None], "extra": {"x": 0.5}}
    tasks = source(written(tmp_path, json.dumps(line).encode()), chat=False)
    task = tasks.task(0)
    assert tasks.size == 1
    assert (task.prompt, task.messages, task.answer, task.tokens) == ("2+2?", None, "4", ())
    assert task.columns == {"level": 1, "tags": ["a", None], "extra": {"x": 0.5}}
    assert task.task_id.startswith("tasks.jsonl/1-")


def test_any_record_is_read_on_its_own_in_any_order(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f"question {n} \u00e9", "answer": n}).encode() for n in range(9)]
    tasks = source(written(tmp_path, b"\n".join(lines) + b"\n"), chat=False)
    assert [tasks.task(n).prompt for n in (8, 0, 5)] == [f"question {n} \u00e9" for n in (8, 0, 5)]
    assert tasks.task(7).answer == "7"
    with pytest.raises(IndexError, match="9 tasks; there is no task 9"):
        tasks.task(9)


def test_the_same_record_has_the_same_id_whatever_its_key_order(tmp_path: Path) -> None:
    one = source(written(tmp_path, b'{"prompt": "a", "x": 1}\n', "f.jsonl")).task(0).task_id
    two = source(written(tmp_path, b'{"x":1,"prompt":"a"}\n', "f.jsonl")).task(0).task_id
    other = source(written(tmp_path, b'{"x":2,"prompt":"a"}\n', "f.jsonl")).task(0).task_id
    assert one == two != other


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n  \n\t\n", b"\n \t"])
def test_ends_of_a_file_may_be_of_any_kind(tmp_path: Path, end: bytes) -> None:
    assert source(written(tmp_path, GOOD + GOOD.strip() + end)).size == 2


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    tasks = source(written(tmp_path, b"\xef\xbb\xbf" + GOOD + GOOD), chat=False)
    assert [tasks.task(n).prompt for n in (0, 1)] == ["2+2?", "2+2?"]


def test_separators_of_unicode_do_not_end_a_line(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\u0085d"
    path = written(tmp_path, json.dumps({"prompt": text}, ensure_ascii=False).encode() + b"\n")
    tasks = source(path, chat=False)
    assert tasks.size == 1
    assert tasks.task(0).prompt == text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{oops}", "not JSON: Expecting property name"),
        (b'{"prompt": "a" "b"}', "not JSON"),
        (b'["prompt"]', r"is a list; .* isn't JSON Lines"),
        (b"3", "is a number; a record must be an object"),
        (b'{"prompt": "a", "x": NaN}', "NaN is no JSON number"),
        (b'{"prompt": "a", "x": -Infinity}', "-Infinity is no JSON number"),
        (b'{"prompt": "a", "x": 1e999}', "1e999 is too large"),
        (b'{"prompt": "a", "prompt": "b"}', "key 'prompt' comes twice"),
        (b'{"prompt": "a\tb"}', "Invalid control character"),
        (b'{"prompt": "a\\ud800"}', "half of a surrogate pair"),
        (b'{"prompt": "a", "x": "\\udc00"}', "half of a surrogate pair"),
        (b'{"prompt": "a", "x": ' + b"[" * 90_000 + b"]" * 90_000 + b"}", "nested too deeply"),
        (b'{"prompt": "a", "x": ' + b"9" * 5000 + b"}", "not JSON: Exceeds the limit"),
        (b'{"prompt": "\xe9"}', r"byte 58 of the file \(0xe9, byte 13 of the line\) isn't UTF-8"),
        (b'{"prompt": " \\n "}', "column 'prompt' is empty"),
        (b'{"prompt": null}', "column 'prompt' is null; it must be text or messages"),
        (b'{"prompt": 3}', "column 'prompt' is a number"),
        (b'{"question": "a"}', "has no column 'prompt'"),
        (b'{"prompt": "a"}', "has no column 'answer', which the first record has"),
        (b'{"prompt": "a", "answer": 0.5}', "column 'answer' is a number; it must be text"),
        (b'{"prompt": "a", "answer": ["4"]}', "column 'answer' is a list"),
        (b'{"prompt": "a", "answer": true}', "column 'answer' is true or false"),
        (b"", "a blank line before the end"),
    ],
)
def test_a_bad_record_stops_with_its_line_or_is_passed_over(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    path = written(tmp_path, GOOD + line + b"\n" + GOOD)
    with pytest.raises(DataError, match=rf"^{path}:2: .*{reason}") as caught:
        source(path)
    assert "\n" not in str(caught.value)
    tasks = source(path, on_bad="skip", max_bad=1)
    assert (tasks.size, tasks.report.num_bad) == (2, 1)
    assert tasks.report.reasons[0].startswith(f"{path}:2: ")
    assert [tasks.task(n).task_id.split("-")[0] for n in (0, 1)] == [
        "tasks.jsonl/1",
        "tasks.jsonl/3",
    ]


def test_a_surrogate_pair_is_one_character(tmp_path: Path) -> None:
    tasks = source(written(tmp_path, b'{"prompt": "\\ud83d\\ude00"}\n'), chat=False)
    assert tasks.task(0).prompt == "\U0001f600"


def test_a_last_line_cut_in_the_middle_is_called_truncated(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD + GOOD[:20])
    with pytest.raises(DataError, match=rf"{path}:2: the last line is cut off \(truncated\)"):
        source(path)
    assert source(path, on_bad="skip").size == 1
    cut_in_a_character = written(tmp_path, GOOD + '{"prompt": "\u00e9'.encode()[:-1])
    with pytest.raises(DataError, match="isn't UTF-8"):
        source(cut_in_a_character)


def test_skipping_ends_at_the_cap_with_the_first_reasons(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD + b"x\n" * 3)
    with pytest.raises(DataError, match=rf"more than tasks\.max_bad=2 .*{path}:2: not JSON.*:4:"):
        source(path, on_bad="skip", max_bad=2)
    assert source(path, on_bad="skip", max_bad=3).report.num_bad == 3
    with pytest.raises(DataError, match=r"max_bad=0"):
        source(path, on_bad="skip", max_bad=0)


def test_a_file_without_a_usable_record_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no record that can be used .*:1: not JSON"):
        source(written(tmp_path, b"x\n"), on_bad="skip")
    with pytest.raises(DataError, match="has no record that can be used"):
        source(written(tmp_path, b"\n\n"))
    with pytest.raises(DataError, match="is empty"):
        source(written(tmp_path, b""))
    with pytest.raises(DataError, match="is UTF-16; write it as UTF-8"):
        source(written(tmp_path, '{"prompt": "a"}\n'.encode("utf-16")))


def test_blank_lines_are_counted_only_before_another_record(tmp_path: Path) -> None:
    path = written(tmp_path, b"\n" + GOOD + b"\n \n" + GOOD + b"\n\n\n")
    tasks = source(path, on_bad="skip")
    assert (tasks.size, tasks.report.num_bad) == (2, 3)
    assert [reason.split(":")[1] for reason in tasks.report.reasons] == ["1", "3", "4"]


def test_a_missing_prompt_column_lists_the_columns_and_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"promt": "a", "target": "b"}\n')
    with pytest.raises(ConfigError, match=r"known: promt, target\. Did you mean 'promt'\?"):
        source(path, on_bad="skip")
    with pytest.raises(ConfigError, match=r"tasks\.id_column is 'id'"):
        source(path, prompt_column="promt", id_column="id")


def test_answers_may_be_absent_everywhere_or_null(tmp_path: Path) -> None:
    without = source(written(tmp_path, b'{"prompt": "a"}\n{"prompt": "b"}\n'))
    assert [without.task(n).answer for n in (0, 1)] == [None, None]
    null = source(written(tmp_path, b'{"prompt": "a", "answer": null}\n'))
    assert null.task(0).answer is None
    with pytest.raises(DataError, match=":2: has a column 'answer', which the first record lacks"):
        source(written(tmp_path, b'{"prompt": "a"}\n{"prompt": "b", "answer": "c"}\n'))


def test_chat_messages_are_read_and_checked(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    path = written(tmp_path, json.dumps({"prompt": messages}).encode())
    assert source(path).task(0).messages == (Message("system", "s"), Message("user", "u"))
    with pytest.raises(DataError, match=r"can't be sent as plain text; set tasks\.chat=true"):
        source(path, chat=False)
    with pytest.raises(DataError, match=r"begins with a system message already"):
        source(path, system="x")


def test_a_text_prompt_becomes_a_user_message_after_the_system_message(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    assert source(path).task(0).messages == (Message("user", "2+2?"),)
    expected = (Message("system", "Be brief."), Message("user", "2+2?"))
    assert source(path, system="Be brief.").task(0).messages == expected
    with pytest.raises(ConfigError, match="system is set but chat is false"):
        FileConfig(path="x", chat=False, system="s")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty list"),
        (["hi"], r"message 1 of column 'prompt' is text; it must be an object"),
        ([{"role": "user", "content": "a"}, {"role": "user"}], "message 2 .* content that is null"),
        ([{"role": 1, "content": "a"}], "role that is a number"),
        ([{"role": "user", "content": [{"type": "text"}]}], "content that is a list"),
        ([{"role": "user", "content": "a", "name": "b"}], "has name; only role and content"),
        ([{"role": "user", "content": " "}], "only empty messages"),
    ],
)
def test_bad_chat_messages_are_named(tmp_path: Path, messages: list[object], reason: str) -> None:
    path = written(tmp_path, json.dumps({"prompt": messages}).encode() + b"\n")
    with pytest.raises(DataError, match=rf"{path}:1: .*{reason}"):
        source(path)


def test_ids_come_from_a_column_and_are_used_once(tmp_path: Path) -> None:
    lines = [{"prompt": f"p{n}", "key": key} for n, key in enumerate(["a", 7, "b", "a", 7, "a"])]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    path = written(tmp_path, content)
    with pytest.raises(DataError, match=rf"{path}:4: id 'a' was used in line 1 already"):
        source(path, id_column="key")
    tasks = source(path, id_column="key", on_bad="skip")
    assert [tasks.task(n).task_id for n in range(tasks.size)] == ["a", "7", "b"]
    assert tasks.report.num_bad == 3
    assert tasks.task(0).columns["key"] == "a"
    with pytest.raises(DataError, match="column 'key' is null; an id must be text"):
        source(written(tmp_path, b'{"prompt": "a", "key": null}\n'), id_column="key")


def test_equal_hashes_of_different_ids_are_not_repetitions(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("parity.tasks.records._id_hash", len)
    lines = [{"prompt": "p", "key": key} for key in ("a", "b", "cc", "b")]
    path = written(tmp_path, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    with pytest.raises(DataError, match=":4: id 'b' was used in line 2"):
        source(path, id_column="key")


def test_a_path_that_can_not_be_read_says_why(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, GOOD)
    cases = {
        None: r"tasks\.path is not set",
        str(tmp_path): r"is a folder; give one of tasks\.jsonl",
        "nothing.jsonl": rf"no such file \(in {tmp_path}\)",
    }
    for name, remedy in {
        "a.json": "rename it to .jsonl",
        "a.parquet": "set tasks.name=parquet",
        "a.jsonl.gz": "decompress it first",
        "a.txt": "reads .jsonl or .ndjson files; rename the file",
    }.items():
        written(tmp_path, GOOD, name)
        cases[name] = remedy.replace(".", r"\.")
    for path, message in cases.items():
        with pytest.raises(ConfigError, match=message):
            JsonlSource(FileConfig(path=path))


def test_a_link_is_followed_and_keeps_its_own_name(tmp_path: Path) -> None:
    written(tmp_path, GOOD, "real.jsonl")
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    assert source(tmp_path / "link.jsonl").task(0).task_id.startswith("link.jsonl/1-")


def test_a_file_that_changed_or_went_is_an_error_and_not_another_task(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD + GOOD)
    tasks = source(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match=rf"{path}:2: the file was changed after it was indexed"):
        tasks.task(1)
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        tasks.task(0)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("parity.tasks.jsonl.MAX_LINE_BYTES", 100)
    with pytest.raises(DataError, match=r":2: a line of more than 0 MiB"):
        source(written(tmp_path, GOOD + b'{"prompt": "' + b"a" * 200 + b'"}\n'))


def test_parsing_one_line_needs_no_file() -> None:
    assert parse_line(b'{"a": 1.5e3, "b": [1, null]}') == {"a": 1500.0, "b": [1, None]}


def test_a_large_file_is_never_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    line = b'{"prompt": "' + b"x" * 1500 + b'", "answer": "1"}\n'
    with path.open("wb") as file:
        for _ in range(60):
            file.write(line * 1000)
    code = (
        "import sys, resource\n"
        "from parity.tasks.config import FileConfig\n"
        "from parity.tasks.jsonl import JsonlSource\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "before = peak()\n"
        "source = JsonlSource(FileConfig(path=sys.argv[1]))\n"
        "assert source.task(59_999).task_id.startswith('large.jsonl/60000-')\n"
        "print(source.size, peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    size, growth_mib = done.stdout.split()
    assert int(size) == 60_000
    assert path.stat().st_size > 90e6
    assert float(growth_mib) < 25, "24 bytes a record and no more"
