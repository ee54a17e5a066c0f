"""`parity replay`: recorded steps are computed again, and one changed token is found."""

import dataclasses
import json
import logging
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from runs.mortal import Ended, parity, words_of

from parity import starts
from parity.cli.audit.replay import as_lines
from parity.errors import ConfigError, DataError
from parity.folder import RunFolder
from parity.ledger import segments
from parity.ledger.payload import decode_group, encode_group
from parity.ledger.segments import Place
from parity.replay.replay import _without_warnings, replay

Recorded = Callable[[], RunFolder]


@pytest.fixture(scope="module")
def made(tiny_dir: Path, tasks_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An asynchronous run of six steps, resumed for two more with another learning rate."""
    cwd = tmp_path_factory.mktemp("recorded")
    words = words_of(tiny_dir, tasks_path, "run", "rollouts.max_lag=1", "checkpoint.keep=2")
    assert parity(*words, cwd=cwd).code == 0
    ended = parity("resume", "run", "steps=8", "optimizer.lr=5e-3", cwd=cwd)
    assert ended.code == 0, ended.said
    return cwd / "runs" / "run"


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Recorded:
    """A copy of the run that a test may spoil."""

    def copy() -> RunFolder:
        return RunFolder(Path(shutil.copytree(made, tmp_path / "runs" / "run")))

    return copy


def test_a_run_and_its_resume_are_computed_again_bit_for_bit(made: Path) -> None:
    found = replay(RunFolder(made))
    assert found.is_equal, (found.number, found.tensor, found.fault)
    assert (found.first, found.last, found.num_steps) == (1, 8, 8)
    assert found.begins == "the starting weights"
    assert found.compared == [
        "the checkpoint of step 6",
        "the checkpoint of step 8",
        "the export of step 8",
    ]
    assert found.num_tensors >= 3 * 20
    assert not found.notes


def test_the_command_says_equal_and_begins_at_a_checkpoint(made: Path) -> None:
    ended: Ended = parity("replay", str(made), "--from", "7", cwd=made.parent)
    assert ended.code == 0, ended.said
    assert "steps 7 to 8 computed again from the checkpoint of step 6" in ended.said
    assert "equal    loss, gradient norm and the other numbers of 2 steps" in ended.said


def test_the_commands_of_the_page_run_as_they_are_written(made: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "reliability.md"
    lines = [line for line in page.read_text().splitlines() if line.startswith("parity replay")]
    assert len(lines) == 3
    for line in lines:
        words = re.split(r"\s{2,}", line.replace("RUN", "run").replace("--json", "--json  "))[0]
        words = words.partition(" from ")[0]
        ended = parity(*words.split()[1:], cwd=made.parents[1])
        assert ended.code == 0, (line, ended)


# Groups that move the weights, as not all answers are alike, and which answer is a best one.
GROUPS = """
    SELECT g.seq, t.step, r.results, g.segment, g.position, g.size_bytes, g.digest
    FROM surviving_trained t
    JOIN surviving_generated g USING (group_index, attempt)
    JOIN surviving_scored r USING (group_index, attempt)
    WHERE t.step > 1 AND (SELECT MIN(value) < MAX(value) FROM json_each(r.results))
    ORDER BY t.step, g.group_index"""


def change_a_token(folder: RunFolder, *, consistently: bool) -> int:
    """Change one sampled token, its digests too or not; the step that was trained on it."""
    dir = folder.ledger_dir
    with closing(sqlite3.connect(dir / "ledger.sqlite")) as connection:
        seq, step, results, *place = connection.execute(GROUPS).fetchone()
        at = Place(*place)
        payloads = list(decode_group(segments.read_record(dir, at)))
        values = json.loads(results)
        best = values.index(max(values))
        tokens = (*payloads[best].tokens[:-1], payloads[best].tokens[-1] ^ 1)
        payloads[best] = dataclasses.replace(payloads[best], tokens=tokens)
        prompt = payloads[best].tokens[: payloads[best].loss_mask.index(True)]
        altered = encode_group(payloads, prompt=prompt)
        digest = segments.digest_of(altered) if consistently else at.digest
        record = segments._HEADER.pack(segments._MAGIC, len(altered), seq, digest) + altered
        assert len(record) == at.size_bytes
        with segments.segment_path(dir, at.segment).open("r+b") as file:
            file.seek(at.position)
            file.write(record)
        connection.execute("UPDATE generated SET digest = ? WHERE seq = ?", (digest, seq))
        connection.commit()
    return step


def test_one_changed_token_shows_as_the_step_and_the_tensor_where_it_breaks(
    copied: Recorded,
) -> None:
    folder = copied()
    step = change_a_token(folder, consistently=True)
    found = replay(folder)
    assert not found.is_equal
    assert found.fault is None
    assert found.number is not None
    assert found.number.step == step
    assert found.number.what in ("train/loss", "train/grad_norm")
    assert found.tensor is not None
    assert found.tensor.step == 6
    assert "the checkpoint of step 6" in found.tensor.says
    assert "values differ" in found.tensor.says
    before = replay(folder, last=step - 1)
    assert before.is_equal
    ended = parity("replay", str(folder.path), "--json", cwd=folder.path)
    assert ended.code == 1
    said = json.loads(ended.said.splitlines()[-1])
    assert (said["equal"], said["number"]["step"]) == (False, step)


def test_a_damaged_payload_is_named_with_its_step_and_group(copied: Recorded) -> None:
    folder = copied()
    step = change_a_token(folder, consistently=False)
    found = replay(folder)
    assert found.fault is not None
    assert found.fault.startswith(f"step {step}, group ")
    assert "isn't what was written" in found.fault
    ended = parity("replay", str(folder.path), cwd=folder.path)
    assert ended.code == 1
    assert f"DAMAGED  step {step}, group" in ended.said
    done = f"steps 1 to {step - 1} (of 1 to 8) computed again from the starting weights"
    assert done in ended.said


def test_where_only_a_number_differs_the_weights_are_said_to_be_equal(copied: Recorded) -> None:
    folder = copied()
    rows = [json.loads(line) for line in folder.metrics_path.read_text().splitlines()]
    changed = next(row for row in rows if row["step"] == 8 and "train/loss" in row)
    changed["train/loss"] += 0.5
    folder.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = replay(folder, first=8)
    assert found.notes == [
        "there is no checkpoint of step 7, so the steps before 8 are computed too; checkpoints are"
        " kept of steps 6, 8"
    ]
    lines = as_lines(found)
    assert lines[0] == "steps 7 to 8 computed again from the checkpoint of step 6"
    assert lines[1].startswith("DIFFERS  at step 8: train/loss is ")
    assert re.fullmatch(
        r"equal    \d+ tensors: the checkpoint of step 8, the export of step 8", lines[2]
    )


def test_what_the_trainer_warned_of_in_the_run_is_not_said_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer = logging.getLogger("parity.training.trainer")
    with _without_warnings():
        trainer.warning("step 3 left the weights alone")
    assert not caplog.records
    trainer.warning("step 4 left the weights alone")
    assert len(caplog.records) == 1


def test_changed_weights_of_a_checkpoint_are_found_by_tensor(copied: Recorded) -> None:
    folder = copied()
    model = folder.checkpoints_dir / "step_00000006" / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    found = replay(folder)
    assert found.number is None
    assert found.tensor is not None
    assert found.tensor.step == 6
    assert "1 of " in found.tensor.says


def test_steps_whose_payloads_are_gone_are_refused_with_the_way_out(copied: Recorded) -> None:
    folder = copied()
    with closing(sqlite3.connect(folder.ledger_dir / "ledger.sqlite")) as connection:
        connection.execute("UPDATE segments SET retired_at = 1 WHERE segment = 1")
        connection.commit()
    segments.segment_path(folder.ledger_dir, 1).unlink()
    with pytest.raises(ConfigError, match=r"payloads of \d steps, 1 to \d, are gone.*--from 7"):
        replay(folder)
    assert replay(folder, first=7).is_equal


def test_what_cannot_be_computed_again_is_refused_in_one_sentence(copied: Recorded) -> None:
    folder = copied()
    with pytest.raises(ConfigError, match=r"took steps 1 to 8; --from 9 .* kept of steps 6, 8"):
        replay(folder, first=9)
    metrics = folder.metrics_path.read_text()
    folder.metrics_path.unlink()
    found = replay(folder, first=7)
    assert (found.num_steps, found.num_unrecorded, found.is_equal) == (0, 2, True)
    folder.metrics_path.write_text(metrics)
    (folder.path / starts.FILE_NAME).unlink()
    with pytest.raises(DataError, match=r"starts\.jsonl can't be read"):
        replay(folder)


def test_other_software_is_noted(copied: Recorded) -> None:
    folder = copied()
    path = folder.path / starts.FILE_NAME
    path.write_text(path.read_text().replace('"cpu": "', '"cpu": "OLD'))
    found = replay(folder, first=7)
    assert any("the run was on cpu OLD" in note for note in found.notes)


def test_a_torn_line_of_starts_stays_by_itself(tmp_path: Path) -> None:
    start = starts.ProcessStart(
        after_step=0,
        unix_s=1.0,
        pid=1,
        trainer_threads=1,
        platform="cpu",
        software={"torch": "1"},
        config={},
    )
    starts.append(tmp_path, start)
    with (tmp_path / starts.FILE_NAME).open("ab") as file:
        file.write(b'{"after_step": 4, "un')
    later = dataclasses.replace(start, after_step=6)
    starts.append(tmp_path, later)
    assert starts.read(tmp_path) == [start, later]
    assert starts.start_of([start, later], 6) == start
    assert starts.start_of([start, later], 7) == later
