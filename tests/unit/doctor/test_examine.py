"""The report follows from the facts: verdict, findings, variables per role, whose value wins."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.doctor.examine import examine
from parity.doctor.show import as_lines
from parity.platforms.facts import Facts, SmiDevice, SmiProbe, TorchBuild

CPU = TorchBuild("2.9.1+cpu")
HIP = TorchBuild("2.9.1+rocm7.0", hip="7.0.51831")
CUDA = TorchBuild("2.9.1+cu128", cuda="12.8")
ABSENT = (SmiProbe("amd-smi", "absent"), SmiProbe("rocm-smi", "absent"))
TWO = (SmiProbe("rocm-smi", "ok", "/opt/rocm/bin/rocm-smi", (SmiDevice(0), SmiDevice(1))),)


def rows(facts: Facts, role: str):
    return {each.name: each for each in examine(facts).variables if each.role == role}


def test_a_cpu_machine_is_usable():
    report = examine(Facts(torch=CPU))
    assert (report.decision.vendor, report.exit_status) == ("cpu", 0)
    assert report.decision.reasons


def test_a_hip_build_without_any_tool_is_amds_and_not_usable():
    report = examine(Facts(torch=HIP, smi=ABSENT))
    assert report.decision.vendor == "amd"
    assert report.decision.is_built_for
    assert not report.decision.is_usable_here
    assert report.exit_status == 2
    assert all(finding.remedy for finding in report.findings)


def test_a_hip_build_with_devices_is_usable():
    assert examine(Facts(torch=HIP, smi=TWO)).exit_status == 0


def test_variables_that_contradict_are_errors_that_name_both():
    environment = {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0,1"}
    report = examine(Facts(torch=HIP, smi=TWO, environment=environment))
    assert report.exit_status == 2
    said = " ".join(finding.message for finding in report.findings)
    assert "HIP_VISIBLE_DEVICES=0" in said
    assert "CUDA_VISIBLE_DEVICES=0,1" in said


def test_an_unknown_platform_is_an_error_and_no_crash():
    report = examine(Facts(torch=CPU, environment={"PARITY_PLATFORM": "quantum"}))
    assert report.exit_status == 2
    assert any("quantum" in finding.message for finding in report.findings)


def test_a_tool_that_hangs_is_a_warning_with_its_path():
    probe = SmiProbe("amd-smi", "timeout", "/opt/rocm/bin/amd-smi", detail="amd-smi was killed")
    report = examine(Facts(torch=HIP, smi=(probe, *TWO)))
    (finding,) = [f for f in report.findings if "amd-smi" in f.message and f.level == "warning"]
    assert "amd-smi was killed" in finding.message
    assert "/opt/rocm/bin/amd-smi" in finding.remedy


def test_a_tool_of_another_vendor_that_fails_does_not_matter():
    report = examine(Facts(torch=CPU, smi=(SmiProbe("nvidia-smi", "failed"),)))
    assert report.exit_status == 0


def test_each_variable_has_a_value_a_source_and_a_reason():
    report = examine(Facts(torch=HIP, smi=TWO, versions={"ray": "2.60.0"}))
    assert {each.role for each in report.variables} == {"driver", "trainer", "rollout"}
    for each in report.variables:
        assert each.source
        assert each.reason


def test_a_users_value_wins_and_is_shown_with_what_it_beats():
    environment = {"SGLANG_USE_AITER": "0", "HSA_NO_SCRATCH_RECLAIM": "1"}
    facts = Facts(torch=HIP, smi=TWO, environment=environment)
    found = rows(facts, "rollout")
    aiter = found["SGLANG_USE_AITER"]
    assert (aiter.value, aiter.default, aiter.source) == ("0", "1", "environment")
    assert aiter.is_users_own
    text = "\n".join(as_lines(examine(facts)))
    assert "your value wins over Parity's '1'" in text
    assert "your value is Parity's too" in text


def test_aiter_is_for_rollouts_of_amd_only():
    assert "SGLANG_USE_AITER" not in rows(Facts(torch=HIP, smi=TWO), "trainer")
    assert "SGLANG_USE_AITER" not in rows(Facts(torch=CUDA), "rollout")


def test_what_ray_alone_needs_is_marked():
    found = rows(Facts(torch=HIP, smi=TWO, versions={"ray": "2.60.0"}), "trainer")
    assert found["RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES"].only_under_ray
    assert not found["HSA_NO_SCRATCH_RECLAIM"].only_under_ray


def test_the_list_that_the_user_set_is_the_one_that_children_get():
    own = {"CUDA_VISIBLE_DEVICES": "0"}
    assert "CUDA_VISIBLE_DEVICES" in rows(Facts(torch=HIP, smi=TWO, environment=own), "rollout")
    assert "HIP_VISIBLE_DEVICES" in rows(Facts(torch=HIP, smi=TWO), "rollout")


def test_facts_of_another_machine_say_nothing_of_its_libraries_and_limits():
    report = examine(Facts(torch=CPU))
    assert (report.libraries, report.limits) == ((), ())
    assert "unknown from a facts file" in "\n".join(as_lines(report))


def test_the_report_is_json_whose_facts_can_be_given_back():
    facts = Facts(torch=HIP, smi=TWO, environment={"HIP_VISIBLE_DEVICES": "1"})
    told = json.loads(json.dumps(examine(facts).to_json()))
    assert told["status"] == "usable"
    assert Facts.from_json(told["facts"]) == facts
    assert examine(Facts.from_json(told["facts"])).decision == examine(facts).decision


def test_what_is_shown_is_printable_whatever_the_facts_say():
    facts = Facts(torch=TorchBuild("2.9\x1b[31m\n\ud800"), environment={"HIP_\x07": "\ud800\n"})
    for line in as_lines(examine(facts)):
        assert line.isprintable()
        line.encode("utf-8")


TEXTS = st.text(max_size=8)
FACTS = st.builds(
    Facts,
    torch=st.none()
    | st.builds(
        TorchBuild, TEXTS, cuda=st.none() | TEXTS, hip=st.none() | TEXTS, xpu=st.none() | TEXTS
    ),
    environment=st.dictionaries(
        st.sampled_from(
            ["PARITY_PLATFORM", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "SGLANG_USE_AITER"]
        )
        | TEXTS,
        TEXTS,
        max_size=4,
    ),
    versions=st.dictionaries(st.sampled_from(["ray", "cann"]), st.none() | TEXTS),
)


@settings(max_examples=60, deadline=None)
@given(FACTS)
def test_no_facts_make_the_doctor_fail(facts: Facts):
    report = examine(facts)
    assert report.exit_status in (0, 1, 2)
    assert (report.exit_status == 2) == (not report.decision.is_usable_here)
    assert as_lines(report)
    json.dumps(report.to_json())


@pytest.mark.parametrize("status", ["timeout", "failed", "garbage"])
def test_only_tools_that_are_there_are_warned_of(status: str):
    probe = SmiProbe("rocm-smi", status, "/x/rocm-smi")  # pyright: ignore
    report = examine(Facts(torch=HIP, smi=(probe,)))
    assert any("rocm-smi doesn't list devices" in finding.message for finding in report.findings)


def test_a_platform_that_fails_to_answer_is_a_finding_with_its_traceback(monkeypatch):
    def fail(*words: object):
        raise RuntimeError("lost")

    monkeypatch.setattr("parity.doctor.imports.try_torch", list)
    monkeypatch.setattr("parity.platforms.cpu.CpuPlatform.telemetry", fail)
    monkeypatch.setenv("PARITY_PLATFORM", "cpu")
    found = {each.message: each for each in examine().findings if each.area == "plugins"}
    telemetry = found["platform cpu can't say its telemetry: RuntimeError('lost')."]
    assert telemetry.level == "warning"
    assert "Traceback" in (telemetry.detail or "")
    monkeypatch.setattr("parity.platforms.cpu.CpuPlatform.defaults", fail)
    report = examine(Facts(torch=CPU))
    (finding,) = [each for each in report.findings if each.area == "plugins"]
    assert finding.message == "platform cpu can't say its variables: RuntimeError('lost')."
    assert (finding.level, report.exit_status, report.variables) == ("error", 2, ())
