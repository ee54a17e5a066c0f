"""docs/quickstart.md keeps its word: its commands are run, in order, as they are written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parity.observe.summary import Summary

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"


def commands() -> list[str]:
    return re.findall(r"^\$ (.+)$", PAGE.read_text(), flags=re.MULTILINE)


@pytest.mark.timeout(600)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    environment |= {"PATH": path, "COLUMNS": "100"}
    outputs: dict[str, str] = {}
    for command in commands():
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        outputs[command] = done.stdout
        assert "Traceback" not in done.stdout + done.stderr
    assert len(outputs) >= 8

    runs = {path.name.rsplit("-", 2)[0]: path for path in (tmp_path / "runs").iterdir()}
    first = Summary.read(runs["quickstart"])
    assert first.status == "finished"
    assert first.eval_first is not None
    assert first.eval_last is not None
    assert first.eval_first <= 0.4
    assert first.eval_last >= 0.9
    assert Summary.read(runs["quickstart_sync"]).steps == 12
    assert (runs["quickstart"] / "curve.png").read_bytes().startswith(b"\x89PNG")
    told = outputs["parity config quickstart rollouts.max_lag=0.5"]
    assert "max_lag: 0.5" in told
    assert "pass_at_4" in next(text for line, text in outputs.items() if "parity eval" in line)
    for name in re.findall(r"^\| `([^`]+)`", PAGE.read_text(), flags=re.MULTILINE):
        for part in re.split(r"[`, ]+", name):
            assert (runs["quickstart"] / part).exists(), f"the page promises {part}"
