"""Test files made to break, to slow down or to deceive the one who reads them."""

import os
import time

import pytest
from ci_repository import CI_TOML, IMPORT, TODAY, inventory, repository

from parity.ci.registry.problems import RegistrationError
from parity.ci.registry.reading import Read, read_test

PATH = "tests/hw/test_x.py"
GOOD = 'register_cuda_ci(60, "h100-4", labels=["fsdp"])\n'
HEX = "0x" + "F" * 6000


@pytest.fixture
def read(tmp_path):
    config = repository(tmp_path, {})

    def reading(text: str) -> Read:
        return read_test(text, PATH, config, TODAY)

    return reading


def call(**words: str) -> str:
    given = {"est_time": "60", "suite": '"h100-4"', "labels": '["fsdp"]', **words}
    return f"register_cuda_ci({', '.join(f'{key}={value}' for key, value in given.items())})\n"


# name: (text below the import, line, what the message must hold)
ATTACKS = {
    "other letters of one name": ('\uff52egister_cuda_ci(60, "nowhere")', 2, "nowhere"),
    "a second one in other letters": (GOOD + GOOD.replace("_ci", "_c\uff49"), 3, "twice"),
    "a number too large to show": (call(est_time=HEX), 2, "est_time is a value of type int"),
    "a suite too large to show": (call(suite=HEX), 2, "suite is a value of type int"),
    "a label too large to show": (call(labels=f"[{HEX}]"), 2, "label a value of type int"),
    "more labels than there are": (call(labels=f"[{'1,' * 99}]"), 2, "99 items"),
    "a key too large to show": (call(disabled=f"{{{HEX}: 1}}"), 2, "disabled has a value"),
    "a gate's key too large": (GOOD + f"register_ci_gate(metric_key={HEX})", 3, "metric_key"),
    "a gate's key of two lines": (GOOD + 'register_ci_gate(metric_key="a\\n::x")', 3, "metric_key"),
    "a gate's key that is no text": (
        GOOD + 'register_ci_gate(metric_key="\\ud800")', 3, "'\\ud800'"),
    "steps too large": (GOOD + f"register_ci_gate(metric_key='a', steps=[{HEX}])", 3, "steps is"),
    "a mode too large": (GOOD + f"register_ci_gate(metric_key='a', mode={HEX})", 3, "mode is"),
    "an estimate of years": (call(est_time="1e308"), 2, "at most a week"),
    "an estimate of minus zero": (call(est_time="-0.0"), 2, "> 0"),
    "an estimate on an imaginary clock": (call(est_time="1j"), 2, "> 0"),
    "a hundred thousand signs": (call(est_time="-" * 100_000 + "1"), 1, "too deeply"),
    "a hundred thousand brackets": (call(est_time="(" * 100_000 + "1"), 2, "valid Python"),
    "a sum of a thousand names": (call(est_time="x+" * 900 + "1"), 2, "must be a literal"),
    "a name of a thousand parts": (
        GOOD + "a" + ".a" * 900 + ".register_cuda_ci()", 3, "another name"),
    "a branch of a hundred thousand signs": (
        GOOD + "register_ci_gate()\nif " + "not " * 100_000 + "torch.version.hip: pass",
        3, "metric"),
    "hundreds of registrations": (GOOD * 300, 202, "at most 200"),
    "a lambda": ("f = lambda: " + GOOD, 2, "inside another statement"),
    "a decorator": ("@" + GOOD + "def f(): ...", 2, "inside another statement"),
    "a walrus": ("(x := " + GOOD.strip() + ")", 2, "inside another statement"),
    "a text that is executed": (f"exec({GOOD!r})", 1, "no registration"),
    "a table of functions": ('globals()["register_cuda_ci"](60, "h100-4")', 1, "no registration"),
    "an import of everything": (
        "from parity.ci import register\nregister.register_cpu_ci(1)", 3, "another name"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_with_its_line_and_a_short_reason(name, read):
    text, line, wanted = ATTACKS[name]
    found = read(IMPORT + text)
    assert found.file is None
    told = [each for each in found.problems if each.line == line and wanted in each.text]
    assert told, [str(each)[:300] for each in found.problems]
    assert all(len(str(each)) < 700 and str(each).isprintable() for each in found.problems)


@pytest.mark.parametrize(
    "text",
    [
        GOOD + '"' + '\\"' * 60_000 + "\nregister_cuda_ci",
        GOOD + '"""' + '\\"""' * 60_000 + "\nregister_cuda_ci",
        GOOD + "'''\"\"\"" * 40_000 + "\nregister_cuda_ci",
        "register_cuda_ci " * 20_000,
        GOOD * 3_000,
    ],
    ids=["quotes", "triple quotes", "alternating quotes", "names", "calls"],
)
def test_no_text_takes_more_than_a_moment(text, read):
    begun = time.process_time()
    assert read(IMPORT + text).file is None
    assert time.process_time() - begun < 5.0  # it was minutes


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\ufeff" + IMPORT + GOOD, 2),
        ((IMPORT + GOOD).replace("\n", "\r\n"), 2),
        (IMPORT + "# a comment\r" + GOOD, 3),  # Python ends the line there
        (IMPORT + "\f" + GOOD, 2),
        (IMPORT + "x = 'é \uff46'\n" + GOOD, 3),
    ],
    ids=["byte order mark", "CRLF", "CR", "form feed", "other letters elsewhere"],
)
def test_what_python_reads_as_a_registration_is_one(text, line, tmp_path):
    (tmp_path / "tests/hw").mkdir(parents=True)
    (tmp_path / PATH).write_bytes(text.encode())
    (file,) = inventory(tmp_path, {}).files
    assert [each.line for each in file.registrations] == [line]


def refused(tmp_path) -> str:
    with pytest.raises(RegistrationError) as error:
        inventory(tmp_path, {})
    return str(error.value)


@pytest.mark.parametrize(
    "name", [b"test_a\n::set-output name=x::.py", b"test_\xff.py", b"test_\x1b[0m.py"]
)
def test_a_name_that_would_command_a_log_is_refused(name, tmp_path):
    (tmp_path / "tests").mkdir()
    path = os.fsencode(tmp_path / "tests") + b"/" + name
    with open(path, "w") as file:  # noqa: PTH123 a name of bytes
        file.write(IMPORT + GOOD)
    told = refused(tmp_path)
    assert "can't be printed" in told
    assert told.isprintable()


def test_what_is_no_plain_file_or_has_no_end_is_refused_unread(tmp_path):
    (tmp_path / "tests").mkdir()
    os.mkfifo(tmp_path / "tests/test_pipe.py")
    with (tmp_path / "tests/test_big.py").open("wb") as file:
        file.truncate(2**32)
    (tmp_path / "tests/test_folder.py").mkdir()
    told = refused(tmp_path)
    assert "tests/test_pipe.py:1: can't be read as UTF-8 text (it is no plain file)" in told
    assert "tests/test_big.py:1: can't be read as UTF-8 text (it has 4294967296 bytes" in told
    assert "test_folder" not in told


def test_links_that_lead_round_are_not_followed(tmp_path):
    repository(tmp_path, {PATH: IMPORT + GOOD})
    (tmp_path / "tests/again").symlink_to(tmp_path / "tests")
    (tmp_path / "tests/self").symlink_to(tmp_path / "tests/self")
    assert len(inventory(tmp_path, {}, toml=CI_TOML).files) == 1
