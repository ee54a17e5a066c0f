"""`parity doctor`: what it prints, and its exit status for good and bad facts files."""

import json
from pathlib import Path

import pytest

from parity.cli.main import main

HIP = {"torch": {"version": "2.9.1+rocm7.0", "hip": "7.0.51831"}, "environment": {}}
CPU = {"torch": {"version": "2.9.1+cpu"}}


@pytest.fixture
def facts_file(tmp_path: Path):
    def write(value: object) -> str:
        path = tmp_path / "facts.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return str(path)

    return write


def test_facts_of_a_cpu_machine_end_with_0(facts_file, capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--facts", facts_file(CPU)]) == 0
    assert capsys.readouterr().out.startswith("Usable. Platform cpu")


def test_a_hip_build_without_tools_ends_with_2_and_no_traceback(facts_file, capsys):
    assert main(["doctor", "--json", "--facts", facts_file(HIP)]) == 2
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert report["decision"]["vendor"] == "amd"
    assert report["decision"]["is_built_for"] is True
    assert report["decision"]["is_usable_here"] is False
    assert report["exit_status"] == 2
    assert "Traceback" not in told.out + told.err


def test_warnings_end_with_1(facts_file, capsys):
    facts = {**CPU, "environment": {"PARITY_PLATFROM": "cpu"}}
    assert main(["doctor", "--facts", facts_file(facts)]) == 1
    assert "did you mean PARITY_PLATFORM?" in capsys.readouterr().out


def test_the_order_of_keys_does_not_matter(facts_file, capsys):
    facts = {
        **HIP,
        "environment": {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"},
        "device_counts": {"kfd": 2},
    }
    main(["doctor", "--json", "--facts", facts_file(facts)])
    forward = capsys.readouterr().out
    backward = {key: facts[key] for key in reversed(facts)}
    backward["environment"] = dict(reversed(facts["environment"].items()))
    main(["doctor", "--json", "--facts", facts_file(backward)])
    assert capsys.readouterr().out == forward


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "{",
        "null",
        "[]",
        "3",
        '"x"',
        "NaN",
        "[" * 100_000,
        '{"a": ' * 50_000,
        '{"versions": {"a": ' + "1" * 6000 + "}}",
        '{"unknown": 1}',
        '{"torch": 3}',
        '{"torch": {"version": null}}',
        '{"smi": {"tool": "x"}}',
        '{"smi": [{"tool": "x", "status": "fine"}]}',
        '{"smi": [{"tool": "x", "status": "ok", "devices": [{"index": -1}]}]}',
        '{"device_counts": {"kfd": 1.5}}',
        '{"device_counts": {"kfd": true}}',
        '{"environment": {"A": null}}',
        '{"device_nodes": "x"}',
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_bad_facts_file_is_one_sentence_and_2(bad: str, form: list[str], facts_file, capsys):
    assert main(["doctor", *form, "--facts", facts_file(bad)]) == 2
    told = capsys.readouterr()
    if told.out:  # `null` is facts without any: torch isn't installed
        assert bad == "null"
    else:
        assert told.err.startswith("parity: ")
        assert len(told.err.strip().splitlines()) == 1
    assert "Traceback" not in told.out + told.err


def test_a_facts_file_that_is_missing_a_folder_or_no_text_is_told(tmp_path: Path, capsys):
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing", tmp_path, binary):
        assert main(["doctor", "--facts", str(path)]) == 2
        assert str(path) in capsys.readouterr().err


def test_lone_surrogates_in_facts_are_shown_escaped(facts_file, capsys):
    text = '{"torch": {"version": "2.9\\ud800"}, "environment": {"HIP_VISIBLE_DEVICES": "\\u001b"}}'
    assert main(["doctor", "--facts", facts_file(text)]) in (0, 1, 2)
    assert "\\ud800" in capsys.readouterr().out
