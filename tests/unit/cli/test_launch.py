"""`parity launch` prints a script or a manifest, or makes a new file; it starts nothing."""

import subprocess
from pathlib import Path

import pytest
import yaml

from parity.cli.main import main

RUN = ("quickstart", "runtime=ray", "platform=cpu", "placement.nodes=2")
KUBERAY = ("launch", "kuberay", *RUN, "--image", "my/parity:1", "--claim", "data")


def test_slurm_prints_a_script_that_bash_reads(capsys, elsewhere: Path):
    assert main(["launch", "slurm", *RUN, "--cpus", "9", "--sbatch", "time=1:00:00"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=quickstart\n#SBATCH --nodes=2\n")
    assert "#SBATCH --cpus-per-task=9\n" in text
    assert "train=(train quickstart runtime=ray platform=cpu placement.nodes=2)" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert not list(elsewhere.iterdir())


def test_kuberay_prints_yaml_with_the_versions_and_names_that_were_chosen(capsys):
    assert main([*KUBERAY, "--ray-version", "2.52.0", "--name", "job-a", "--mount", "/mnt/"]) == 0
    maps, job = yaml.safe_load_all(capsys.readouterr().out)
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == "2.52.0"
    assert (maps["metadata"]["name"], job["metadata"]["name"]) == ("job-a-run", "job-a")
    assert yaml.safe_load(maps["data"]["run.yaml"])["output"] == {
        "dir": "/mnt/runs",
        "name": "job-a",
    }


def test_a_file_is_made_and_never_written_over(capsys, elsewhere: Path):
    assert main(["launch", "slurm", *RUN, "-o", "job.sbatch"]) == 0
    assert capsys.readouterr().out == ""
    (elsewhere / "job.sbatch").write_text("edited")
    assert main(["launch", "slurm", *RUN, "-o", "job.sbatch"]) == 2
    assert "job.sbatch exists already" in capsys.readouterr().err
    assert (elsewhere / "job.sbatch").read_text() == "edited"
    assert main([*KUBERAY, "-o", "no/such/folder.yaml"]) == 2
    assert "can't be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["slurm", "quickstart"], "add runtime=ray"),
        (["slurm", "quickstart", "runtime=ray"], "platform is 'auto'"),
        (["slurm", *RUN, "rollouts.max_lag=nan"], "rollouts.max_lag is nan"),
        (["slurm", *RUN, "placement.cpus_per_process=4", "--cpus", "2"], "set --cpus 4 or more"),
        (
            ["slurm", *RUN, "placement.memory_gib_per_process=4", "--memory-gib", "2"],
            "set --memory-gib 4 or more",
        ),
        (["kuberay", *RUN], "--image"),
        ([*KUBERAY[1:], "--name", "A"], "small letters"),
        (["wait", "--nodes", "2"], "RAY_ADDRESS isn't set"),
    ],
)
def test_what_cannot_be_launched_is_one_sentence_and_code_2(words, says, capsys, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(["launch", *words]) == 2
    assert says in capsys.readouterr().err
