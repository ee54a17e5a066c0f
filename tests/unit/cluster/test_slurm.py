"""The sbatch script: what it asks Slurm for, that nothing of the user's is shell, and a whole job
against stand-ins for Slurm and Ray."""

import dataclasses
import os
import re
import signal
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from unit.cluster.conftest import NODES, WORDS, Job, Render, end

from parity.cluster.shape import Shape, shape_of
from parity.cluster.slurm import SlurmOptions, script
from parity.config.compose import load_train
from parity.config.schema import TrainConfig
from parity.errors import ConfigError

# Options of sbatch (its manual, Slurm 23.11) that scripts may have, and what values look like.
OPTIONS = {
    "job-name": r"\S+",
    "nodes": r"[1-9]\d*",
    "ntasks-per-node": r"1",
    "cpus-per-task": r"[1-9]\d*",
    "gpus-per-node": r"([a-z0-9]+:)?[1-9]\d*",
    "gres": r"\w+(:\w+)?:[1-9]\d*",
    "mem": r"[1-9]\d*[KMGT]",
    "signal": r"(B:)?[A-Z]+@\d{1,5}",
    "requeue": None,
    "no-requeue": None,
    "open-mode": r"append|truncate",
    "output": r"[\w%.-]+",
    "time": r"(\d+-)?\d+(:\d\d){0,2}",
    "partition": r"[\w,]+",
    "exclusive": None,
}
BODY = "# Below this line"


def directives(text: str) -> dict[str, str | None]:
    """What sbatch reads: the lines before the first command."""
    head = text.partition("\n\n")[0].splitlines()[1:]
    assert all(line.startswith("#") for line in head)
    found = [line.removeprefix("#SBATCH --") for line in head if line.startswith("#SBATCH")]
    assert not any("#SBATCH" in line for line in text.splitlines()[len(head) + 1 :])
    names = [word.partition("=")[0] for word in found]
    assert len(names) == len(set(names)), names
    return {
        n: (w.partition("=")[2] if "=" in w else None) for n, w in zip(names, found, strict=True)
    }


def rendered(*words: str, platform: str = "cpu", **options: object) -> str:
    words = ("runtime=ray", f"platform={platform}", *words)
    config = load_train("quickstart", words)
    return script(
        config,
        shape_of(config),
        recipe="quickstart",
        overrides=words,
        options=SlurmOptions(**options),  # pyright: ignore
        work_dir=Path("/work"),
    )


@pytest.mark.parametrize(
    ("words", "options", "expected"),
    [
        ((), {}, {"nodes": "1", "cpus-per-task": "4", "no-requeue": None, "signal": "B:TERM@300"}),
        (("placement.nodes=2",), {"requeue": True}, {"nodes": "2", "requeue": None}),
        (
            ("placement.trainer_ranks=6", "placement.engine_replicas=2", "placement.nodes=2"),
            {"platform": "cuda"},
            {"gpus-per-node": "4", "nodes": "2"},
        ),
        (("placement.trainer_ranks=3",), {"platform": "npu"}, {"gres": "npu:4"}),
        (("placement.memory_gib_per_process=3",), {}, {"mem": "6G"}),
        (
            (),
            {"sbatch": ["time=1-02:00:00", "partition=a,b", "exclusive", "--job-name=x"]},
            {"time": "1-02:00:00", "partition": "a,b", "exclusive": None, "job-name": "x"},
        ),
        (
            (),
            {"platform": "rocm", "sbatch": ["gpus-per-node=mi300:2"]},
            {"gpus-per-node": "mi300:2"},
        ),
    ],
)
def test_directives_follow_from_the_placement_and_are_known_to_sbatch(words, options, expected):
    found = directives(rendered(*words, **options))
    assert found.items() >= expected.items()
    for name, value in found.items():
        pattern = OPTIONS[name]
        assert (value is None) == (pattern is None), name
        assert pattern is None or re.fullmatch(pattern, value), (name, value)


@pytest.mark.parametrize(
    ("words", "options", "says"),
    [
        (("runtime=inline",), {}, "add runtime=ray"),
        ((), {"platform": "auto"}, "platform is 'auto'"),
        ((), {"platform": "cudo"}, "Did you mean 'cuda'"),
        ((), {"sbatch": ["nodes=4"]}, "set placement.nodes instead"),
        ((), {"sbatch": ["tiem=3"]}, "Did you mean 'time'"),
        ((), {"sbatch": ["time"]}, "needs a value"),
        ((), {"sbatch": ["contiguous=1"]}, "takes no value"),
        ((), {"sbatch": ["comment=a b"]}, "quoting rules"),
        ((), {"sbatch": ["comment=a\n#SBATCH --mem=1"]}, "quoting rules"),
        ((), {"platform": "cuda", "sbatch": ["gres=gpu:8"]}, "let it end with :2"),
        ((), {"interface": "a b"}, "network interface"),
        ((), {"temp_dir": "tmp"}, "absolute path"),
        ((), {"temp_dir": "/" + "x" * 40}, "at most"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(words, options, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        rendered(*words, **options)


@cache
def three_ranks() -> tuple[TrainConfig, Shape]:
    config = load_train("quickstart", WORDS)
    return config, shape_of(config)


HOSTILE = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30
) | st.sampled_from(
    ["$(touch owned)", "`id`", "'; exit 9; '", '"', "\\", "\n", "-n", "*", "!!", "~"]
)


@settings(max_examples=25, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(words=st.lists(HOSTILE, max_size=4), folder=HOSTILE, name=HOSTILE)
def test_no_value_of_the_user_is_shell(words: list[str], folder: str, name: str):
    config, shape = three_ranks()
    output = dataclasses.replace(config.output, dir=f"d{folder}")
    if name not in ("", ".", "..") and "/" not in name:
        output = dataclasses.replace(output, name=name)
    config = dataclasses.replace(config, output=output)
    text = script(
        config,
        shape,
        recipe="quickstart",
        overrides=words,
        options=SlurmOptions(),
        work_dir=Path("/w") / f"x{folder}",
    )
    head = text.partition(BODY)[0]
    shown = 'printf "%s\\0" "$work_dir" "$runs_dir" "$run_name" "${train[@]}"'
    program = f"{head}\n{shown}\n".encode()
    done = subprocess.run(["bash", "-u"], input=program, capture_output=True, cwd="/")
    expected = [str(Path("/w") / f"x{folder}"), str(Path("/w") / f"x{folder}" / output.dir)]
    expected += [output.name or "", "train", "quickstart", *words]
    assert done.stdout.decode().split("\0")[:-1] == expected, done.stderr
    assert subprocess.run(["bash", "-n"], input=text.encode()).returncode == 0


def test_a_job_brings_up_its_nodes_and_keeps_the_exit_code_of_the_run(job: Job, render: Render):
    job.variables["FAKE_CODE"] = "7"
    code, said = job.run(render("output.dir=my runs"))
    assert code == 7, said
    nodes = [line for line in job.log if line.startswith("ray ")]
    started = [line.split()[1] for line in nodes]
    assert (started[0], sorted(started)) == (NODES[0], list(NODES))
    tokens = {line.split()[2] for line in nodes}
    assert len(tokens) == 1
    assert len(tokens.pop()) == len("token=") + 64
    (head, *others) = nodes
    port = 20000 + 2 * (job.job_id % 5000)
    assert f"--head --node-ip-address=127.0.0.1 --port={port} " in head
    assert all(f"--address=127.0.0.1:{port} --num-cpus=" in line for line in others)
    run = next(line for line in job.log if line.startswith("parity train"))
    assert run.endswith(
        f"output.dir=my runs output.name=quickstart-{job.job_id} address=127.0.0.1:{port}"
    )
    assert not Path(f"/tmp/parity-{job.job_id}").exists()
    assert not left_over(job)


def test_a_node_that_cannot_start_ends_the_job_with_its_name(job: Job, render: Render):
    job.variables["FAKE_BROKEN"] = "n2"
    code, said = job.run(render())
    assert code == 1
    assert "the Ray node on n2 ended with exit code 3 before the run began" in said
    assert "the node is on fire" in said
    assert not any(line.startswith("parity train") for line in job.log)
    assert not left_over(job)


def test_a_node_that_starts_at_the_second_try_is_there_for_the_run(job: Job, render: Render):
    job.variables["FAKE_SHAKY"] = "n3"
    code, said = job.run(render())
    assert code == 0, said
    assert "the Ray node on n3 ended with exit code 4; it is started again" in said
    assert sum(line.startswith("parity train") for line in job.log) == 1
    assert not left_over(job)


def test_a_node_that_does_not_come_up_ends_the_job_in_time(job: Job, render: Render):
    job.variables["FAKE_SILENT"] = "n3"
    code, said = job.run(render("placement.start_timeout_s=3"))
    assert code == 1
    assert "not all of n1 n2 n3 joined within 3 s" in said
    assert not left_over(job)


@pytest.mark.parametrize("requeue", [True, False])
def test_a_stop_reaches_the_run_and_the_next_start_goes_on(job: Job, render: Render, requeue):
    job.variables["FAKE_RUN"] = "until_told"
    text = render(requeue=requeue)
    process = job.start(text)
    try:
        job.wait_for("run begins")
        os.kill(process.pid, signal.SIGTERM)
        said, _ = process.communicate(timeout=120)
    finally:
        end(process)
    assert process.returncode == 130, said
    assert "run told" in job.log
    assert (f"scontrol requeue {job.job_id}" in job.log) == requeue
    name = f"quickstart-{job.job_id}"
    assert (f"PARITY_RUN_NAME={name} sbatch" in said) == (not requeue)
    folder = job.dir / "runs" / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    job.variables |= {"FAKE_RUN": "", "PARITY_RUN_NAME": name}
    code, _ = job.run(text)
    assert code == 0
    assert any(line.startswith(f"parity resume {folder} ") for line in job.log)


def test_the_head_takes_an_address_that_others_can_reach_or_says_that_there_is_none(
    job: Job, render: Render
):
    programs = job.dir / "names"
    programs.mkdir()
    answers = {"getent": "echo 127.0.1.1 STREAM node", "hostname": "echo ${LAN:-}", "ray": "exit 3"}
    for name, does in answers.items():
        (programs / name).write_text(f"#!/bin/bash\n{does}\n")
        (programs / name).chmod(0o755)
    text = render(setup=[f"export PATH={programs}:$PATH"], interface="")
    code, said = job.run(text)
    assert code == 1
    assert "n1 has no IPv4 address that other nodes can reach; give --interface NAME" in said
    job.variables["LAN"] = "fe80::1 127.0.0.1 192.0.2.7 10.0.0.1"
    code, said = job.run(text)
    assert code == 1
    assert "head on n1 at 192.0.2.7:" in said
    assert "the Ray node on n1 ended with exit code 3" in said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"SLURM_JOB_ID": ""}, "no Slurm job here"),
        ({"SLURM_JOB_NODELIST": "n1,n2"}, "the job has 2 nodes, and the run is placed on 3"),
    ],
)
def test_a_job_that_is_not_as_the_run_needs_ends_at_once(job: Job, render, changes, says):
    job.variables |= changes
    code, said = job.run(render())
    assert code == 1
    assert says in said
    assert not any(line.startswith("ray ") for line in job.log)


def left_over(job: Job) -> list[str]:
    """Processes of the job that are still there, by the folder in their environment."""
    mark = f"FAKE_DIR={job.dir}".encode()
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found
