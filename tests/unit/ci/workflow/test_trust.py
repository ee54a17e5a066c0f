"""Who can make what run where: a stranger's commit reaches our machines by an approval only."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.ci.workflow.sample import workflows
from unit.ci.workflow.service import Scenario, environments, evaluate, load_workflow, play

OWN = {"tests-small", "tests-half"}
HEAD, MERGE = "a" * 40, "b" * 40
ALL_SUITES = json.dumps(["fast", "boxed", "h100-2", "small", "half", "ascend"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workflows(tmp_path_factory.mktemp("repository"))


def plan(suites: str = ALL_SUITES, *, fail_fast: str = "true") -> dict[str, str]:
    return {
        "cadence": "regular",
        "labels": '["run-ci-long"]',
        "suites": suites,
        "fail_fast": fail_fast,
        "image_tag": "",
        "references": "{}",
    }


def pull_request(**event: object) -> dict[str, Any]:
    pull = {"number": 7, "head": {"sha": HEAD}, "body": "text", "labels": [{"name": "nightly"}]}
    return {
        "event_name": "pull_request",
        "ref": "refs/pull/7/merge",
        "sha": MERGE,
        "run_id": 11,
        "event": {"action": "synchronize", "pull_request": pull, **event},
    }


def other(name: str, ref: str, **event: object) -> dict[str, Any]:
    return {"event_name": name, "ref": ref, "sha": MERGE, "run_id": 12, "event": event}


def jobs(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path in sorted(folder.glob("*.yml")):
        for name, job in load_workflow(path)["jobs"].items():
            yield path.name, name, job


def test_a_pull_request_without_an_approval_starts_nothing_on_our_machines(folder: Path) -> None:
    found = play(folder, "ci-rocm.yml", Scenario(pull_request(), plan()))
    assert "tests-fast" in found.started and "approve" in found.started
    assert not OWN & set(found.started)


def test_an_approval_starts_exactly_the_approved_commit(folder: Path) -> None:
    found = play(folder, "ci-rocm.yml", Scenario(pull_request(), plan(), approved=True))
    assert set(found.started) >= OWN
    for name in OWN:
        context = found.contexts[name]
        checkout = context["job"]["steps"][0]
        assert evaluate(checkout["with"]["ref"], context) == MERGE
        verify = context["job"]["steps"][1]
        assert evaluate(verify["env"]["COMMIT"], context) == MERGE
        assert evaluate(verify["env"]["HEAD"], context) == HEAD


@pytest.mark.parametrize("name", ["schedule", "push", "workflow_dispatch"])
def test_runs_of_the_default_branch_need_no_approval(folder: Path, name: str) -> None:
    found = play(folder, "ci-rocm.yml", Scenario(other(name, "refs/heads/trunk"), plan()))
    assert "approve" not in found.started
    assert set(found.started) >= OWN


def test_a_dispatched_run_of_another_branch_needs_the_approval(folder: Path) -> None:
    github = other("workflow_dispatch", "refs/heads/feature")
    assert not OWN & set(play(folder, "ci-rocm.yml", Scenario(github, plan())).started)
    approved = Scenario(github, plan(), approved=True)
    assert set(play(folder, "ci-rocm.yml", approved).started) >= OWN


def test_nobody_is_asked_when_nothing_would_run_on_our_machines(folder: Path) -> None:
    found = play(folder, "ci-rocm.yml", Scenario(pull_request(), plan('["fast"]')))
    assert found.started == ["plan", "tests-fast"]


def test_a_failed_plan_starts_nothing(folder: Path) -> None:
    scenario = Scenario(pull_request(), plan(), approved=True, failing=frozenset({"plan"}))
    assert play(folder, "ci-rocm.yml", scenario).started == ["plan"]


def test_a_failed_cheap_suite_holds_back_our_machines_unless_told_otherwise(folder: Path) -> None:
    failing = frozenset({"tests-fast"})
    stopped = Scenario(pull_request(), plan(), approved=True, failing=failing)
    assert "runs" not in play(folder, "ci-rocm.yml", stopped).started
    github = other("schedule", "refs/heads/trunk")
    going = Scenario(github, plan(fail_fast="false"), failing=failing)
    assert set(play(folder, "ci-rocm.yml", going).started) >= OWN


def test_a_suite_of_our_machines_holds_back_those_that_need_it(folder: Path) -> None:
    scenario = Scenario(pull_request(), plan(), approved=True, failing=frozenset({"tests-small"}))
    assert OWN & set(play(folder, "ci-rocm.yml", scenario).started) == {"tests-small"}


def test_a_suite_that_was_pruned_holds_nothing_back(folder: Path) -> None:
    scenario = Scenario(pull_request(), plan('["half"]'), approved=True)
    found = play(folder, "ci-rocm.yml", scenario)
    assert found.started == ["plan", "runs", "approve", "tests-half"]


def test_a_label_that_is_not_about_ci_restarts_and_cancels_nothing(folder: Path) -> None:
    group = load_workflow(folder / "ci-rocm.yml")["concurrency"]["group"]
    running = evaluate(group, {"github": pull_request()})
    for label, is_ours in (("documentation", False), ("run-ci-long", True), ("nightly", True)):
        github = pull_request(action="labeled", label={"name": label})
        started = play(folder, "ci-rocm.yml", Scenario(github, plan())).started
        assert ("plan" in started) is is_ours
        assert (evaluate(group, {"github": github}) == running) is is_ours


def test_no_two_runs_share_a_group_unless_one_replaces_the_other(folder: Path) -> None:
    events = [
        pull_request(),
        pull_request() | {"event": {"pull_request": {"number": 8}}},
        other("schedule", "refs/heads/trunk", schedule="0 2 * * 1-6"),
        other("schedule", "refs/heads/trunk", schedule="0 2 * * 0"),
        other("push", "refs/heads/trunk") | {"run_id": 13},
        other("push", "refs/heads/trunk") | {"run_id": 14},
        other("workflow_dispatch", "refs/heads/trunk"),
    ]
    groups = [
        evaluate(load_workflow(path)["concurrency"]["group"], {"github": github})
        for path in folder.glob("*.yml")
        if not path.stem.endswith("-runs")
        for github in events
    ]
    assert len(set(groups)) == len(groups) == 4 * len(events)


def test_only_a_newer_push_of_a_pull_request_cancels(folder: Path) -> None:
    cancels = load_workflow(folder / "ci-rocm.yml")["concurrency"]["cancel-in-progress"]
    assert evaluate(cancels, {"github": pull_request()}) is True
    assert evaluate(cancels, {"github": other("schedule", "refs/heads/trunk")}) is False


def test_secrets_reach_scheduled_runs_on_our_machines_only(folder: Path) -> None:
    for github, expected in (
        (other("schedule", "refs/heads/trunk"), "secret:HISTORY_URL"),
        (other("push", "refs/heads/trunk"), ""),
        (pull_request(), ""),
    ):
        found = play(folder, "ci-rocm.yml", Scenario(github, plan(), approved=True))
        call = found.contexts["runs"]
        assert evaluate(call["job"]["secrets"]["HISTORY_URL"], call) == expected
        for name in OWN:
            context = found.contexts[name]
            values = [
                env["PARITY_CI_HISTORY"]
                for env in environments(context["job"])
                if "PARITY_CI_HISTORY" in env
            ]
            assert [evaluate(each, context) for each in values] == [expected]
    for _, name, job in jobs(folder):
        if "self-hosted" not in str(job.get("runs-on")) and name not in ("runs", "tests-half"):
            assert "secrets." not in json.dumps(job)


def test_events_never_run_with_the_rights_of_the_default_branch(folder: Path) -> None:
    allowed = {"pull_request", "push", "schedule", "workflow_dispatch", "workflow_call"}
    for path in folder.glob("*.yml"):
        assert set(load_workflow(path)["on"]) <= allowed


def test_permissions_are_the_least_and_said_for_each_job(folder: Path) -> None:
    for path in folder.glob("*.yml"):
        assert load_workflow(path)["permissions"] == {}
    for _, name, job in jobs(folder):
        more = {"pull-requests": "read"} if name in ("approve", "runs") else {}
        assert job["permissions"] == {"contents": "read", **more}


def test_each_job_and_step_has_a_time_limit(folder: Path) -> None:
    for file, name, job in jobs(folder):
        if "uses" in job:
            continue
        assert 0 < job["timeout-minutes"] <= 24 * 60, (file, name)
        for step in job["steps"]:
            assert 0 < step["timeout-minutes"] <= job["timeout-minutes"] + 10, (file, step["name"])


def test_no_credentials_stay_in_a_checkout_and_actions_are_full_commits(folder: Path) -> None:
    checkouts = 0
    for _, _, job in jobs(folder):
        for step in job.get("steps", ()):
            if "uses" not in step:
                continue
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"])
            if "checkout" in step["uses"]:
                checkouts += 1
                assert step["with"]["persist-credentials"] is False
    assert checkouts > 10


def test_no_script_holds_an_expression(folder: Path) -> None:
    scripts = [
        step["run"] for _, _, job in jobs(folder) for step in job.get("steps", ()) if "run" in step
    ]
    assert len(scripts) > 30
    assert not [script for script in scripts if "${{" in script]


def test_the_callee_takes_exactly_what_the_caller_gives(folder: Path) -> None:
    for lane in ("cuda", "rocm", "npu"):
        call = load_workflow(folder / f"ci-{lane}.yml")["jobs"]["runs"]
        takes = load_workflow(folder / f"ci-{lane}-runs.yml")["on"]["workflow_call"]
        assert call["uses"] == f"./.github/workflows/ci-{lane}-runs.yml"
        assert set(call["with"]) == set(takes["inputs"])
        assert set(call["secrets"]) == set(takes["secrets"])


def test_with_a_repository_the_gate_comes_from_the_default_branch(tmp_path: Path) -> None:
    folder = workflows(tmp_path, ("[workflow]\n", '[workflow]\nrepository = "acme/trainer"\n'))
    call = load_workflow(folder / "ci-rocm.yml")["jobs"]["runs"]
    assert call["uses"] == "acme/trainer/.github/workflows/ci-rocm-runs.yml@trunk"


def bind_step(folder: Path) -> dict[str, Any]:
    return load_workflow(folder / "ci-rocm-runs.yml")["jobs"]["approve"]["steps"][0]


def run_script(script: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """As the service does: bash that stops at the first failure."""
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(
        command,
        env=os.environ | env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("now", "code"), [(HEAD, 0), ("c" * 40, 1)])
def test_a_push_after_the_approval_was_asked_for_makes_it_void(
    folder: Path, tmp_path: Path, now: str, code: int
) -> None:
    tool = tmp_path / "gh"
    tool.write_text(f'#!/bin/sh\n[ "$2" = repos/acme/trainer/pulls/7 ] && echo {now}\n')
    tool.chmod(0o755)
    output = tmp_path / "output"
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "REPOSITORY": "acme/trainer",
        "NUMBER": "7",
        "HEAD": HEAD,
        "COMMIT": MERGE,
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }
    done = run_script(bind_step(folder)["run"], env, tmp_path)
    assert done.returncode == code, done.stderr
    assert (output.read_text() if output.exists() else "") == ("" if code else f"commit={MERGE}\n")
    assert ("approve its run" in done.stdout) is bool(code)


def git(place: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    command = ["git", *identity, *words]
    return subprocess.run(
        command, cwd=place, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_another_commit_than_the_approved_one_stops_the_job(folder: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "trunk")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "base")
    git(tmp_path, "checkout", "-q", "-b", "change")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "change")
    head = git(tmp_path, "rev-parse", "HEAD")
    git(tmp_path, "checkout", "-q", "trunk")
    git(tmp_path, "merge", "-q", "--no-ff", "-m", "merge", "change")
    merge = git(tmp_path, "rev-parse", "HEAD")
    script = load_workflow(folder / "ci-rocm-runs.yml")["jobs"]["tests-small"]["steps"][1]["run"]
    cases = [(merge, head, 0), (merge, "", 0), (head, head, 1), (merge, merge, 1)]
    for commit, wanted, code in cases:
        done = run_script(script, {"COMMIT": commit, "HEAD": wanted}, tmp_path)
        assert done.returncode == code, (done.stdout, done.stderr)
