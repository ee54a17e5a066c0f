"""Detection is a pure function of facts; the vendor comes from the build, and nothing bends it."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.platforms.made_facts import BUILDS, make, probe

from parity.errors import ConfigError, UnsupportedError
from parity.platforms.cpu import CpuPlatform
from parity.platforms.cuda import CudaPlatform
from parity.platforms.detect import choose, decide, decide_here, has_trace, load, use
from parity.platforms.facts import Facts, SmiDevice, SmiProbe
from parity.platforms.npu import NpuPlatform
from parity.platforms.rocm import RocmPlatform

KINDS = (CpuPlatform, CudaPlatform, NpuPlatform, RocmPlatform)
CVD, HVD, RVD, AVD = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
)
NV, AMD, ROC, ASC = {"nvidia-smi": 8}, {"amd-smi": 8}, {"rocm-smi": 8}, {"npu-smi": 8}
UUIDS = ("GPU-aaaa1111", "GPU-bbbb2222", "GPU-cccc3333")
ALL8 = tuple(range(8))
NO: tuple[int, ...] = ()

# facts -> platform, built for it, usable here, logical -> physical
TABLE = [
    # which build
    (make("cpu"), "cpu", True, True, (0,)),
    (make("none"), "cpu", False, False, NO),
    (make("cuda", smi=NV), "cuda", True, True, ALL8),
    (make("hip", smi=AMD), "rocm", True, True, ALL8),
    (make("both", smi=AMD), "rocm", True, True, ALL8),
    (make("both", smi=NV), "rocm", True, False, None),
    (make("cpu", npu=True, smi=ASC), "npu", True, True, ALL8),
    (make("cuda", npu=True, smi=ASC), "npu", True, True, ALL8),
    (make("cuda", npu=True, smi=NV), "npu", True, False, None),
    (make("hip", npu=True, smi=AMD), "npu", True, False, None),
    (make("none", npu=True, smi=ASC), "cpu", False, False, NO),
    (make("xpu"), "cpu", True, True, (0,)),
    # hardware that the build can't drive doesn't change the platform
    (make("cpu", smi=NV), "cpu", True, True, (0,)),
    (make("cpu", smi=AMD), "cpu", True, True, (0,)),
    (make("cpu", smi=ASC), "cpu", True, True, (0,)),
    (make("cuda", smi=AMD), "cuda", True, False, None),
    (make("hip", smi=NV), "rocm", True, False, None),
    (make("hip", smi={**NV, **AMD}), "rocm", True, True, ALL8),
    # no device in this process: same vendor
    (make("cuda"), "cuda", True, False, None),
    (make("hip"), "rocm", True, False, None),
    (make("cpu", npu=True), "npu", True, False, None),
    (make("cuda", smi={"nvidia-smi": 0}), "cuda", True, False, NO),
    (make("hip", smi={"amd-smi": 0}), "rocm", True, False, NO),
    (make("cpu", npu=True, smi={"npu-smi": 0}), "npu", True, False, NO),
    (make("hip", smi={"rocm-smi": "absent", "amd-smi": "absent"}), "rocm", True, False, None),
    (make("cuda", smi={"nvidia-smi": "absent"}), "cuda", True, False, None),
    (make("cuda", smi={"nvidia-smi": "timeout"}), "cuda", True, False, None),
    (make("cuda", smi={"nvidia-smi": "failed"}), "cuda", True, False, None),
    (make("cuda", smi={"nvidia-smi": "garbage"}), "cuda", True, False, None),
    (make("hip", smi={"amd-smi": "timeout", **ROC}), "rocm", True, True, ALL8),
    (make("hip", smi={"amd-smi": "failed", "rocm-smi": "garbage"}), "rocm", True, False, None),
    (make("cpu", npu=True, smi={"npu-smi": "failed"}), "npu", True, False, None),
    # files of the kernel driver stand in for a tool that isn't there
    (make("cuda", counts={"nvidia-driver": 2}), "cuda", True, True, (0, 1)),
    (make("hip", counts={"kfd": 2}), "rocm", True, True, (0, 1)),
    (make("hip", counts={"kfd": None}), "rocm", True, False, None),
    (make("hip", counts={"kfd": 0}), "rocm", True, False, NO),
    (make("hip", smi={"amd-smi": 0}, counts={"kfd": 8}), "rocm", True, False, NO),
    (make("cuda", counts={"kfd": 8}), "cuda", True, False, None),
    # nodes and folders aren't devices
    (make("hip", nodes=["/dev/kfd", "/dev/dri/renderD128"]), "rocm", True, False, None),
    (make("cuda", nodes=["/dev/nvidia0", "/dev/nvidiactl"]), "cuda", True, False, None),
    (make("cpu", nodes=["/dev/kfd", "/dev/nvidia0", "/dev/davinci0"]), "cpu", True, True, (0,)),
    (make("cpu", npu=True, nodes=["/dev/davinci0"]), "npu", True, False, None),
    # NVIDIA lists
    (make("cuda", smi=NV, **{CVD: "4,5,6,7"}), "cuda", True, True, (4, 5, 6, 7)),
    (make("cuda", smi=NV, **{CVD: "1,0"}), "cuda", True, True, (1, 0)),
    (make("cuda", smi=NV, **{CVD: " 0 , 2 ,5 "}), "cuda", True, True, (0, 2, 5)),
    (make("cuda", smi=NV, **{CVD: "3,"}), "cuda", True, True, (3,)),
    (make("cuda", smi=NV, **{CVD: ""}), "cuda", True, False, NO),
    (make("cuda", smi=NV, **{CVD: "-1"}), "cuda", True, False, NO),
    (make("cuda", smi=NV, **{CVD: "NoDevFiles"}), "cuda", True, False, NO),
    (make("cuda", smi=NV, **{CVD: "0,-1,1"}), "cuda", True, True, (0,)),
    (make("cuda", smi=NV, **{CVD: "0,0"}), "cuda", True, False, NO),
    (make("cuda", smi=NV, **{CVD: "0,8"}), "cuda", True, False, NO),
    (make("cuda", smi=NV, **{CVD: "all"}), "cuda", True, False, NO),
    (make("cuda", smi=NV, **{CVD: "0;1"}), "cuda", True, False, NO),
    (make("cuda", smi=NV, **{CVD: "0,,1"}), "cuda", True, False, NO),
    (make("cuda", smi={"nvidia-smi": UUIDS}, **{CVD: UUIDS[2]}), "cuda", True, True, (2,)),
    (make("cuda", smi={"nvidia-smi": UUIDS}, **{CVD: "GPU-bb,GPU-aa"}), "cuda", True, True, (1, 0)),
    (make("cuda", smi={"nvidia-smi": UUIDS}, **{CVD: "GPU-dddd"}), "cuda", True, False, NO),
    (make("cuda", smi={"nvidia-smi": UUIDS}, **{CVD: "GPU-aa,1"}), "cuda", True, False, NO),
    (make("cuda", smi=NV, **{CVD: "MIG-7f"}), "cuda", True, True, ("MIG-7f",)),
    (make("cuda", **{CVD: "0,1"}), "cuda", True, False, (0, 1)),
    (make("cuda", **{CVD: ""}), "cuda", True, False, NO),
    (make("cuda", smi=NV, **{HVD: "0"}), "cuda", True, True, ALL8),
    (make("cuda", smi=NV, **{RVD: "0", CVD: "7"}), "cuda", True, True, (7,)),
    (make("cpu", **{CVD: "nonsense"}), "cpu", True, True, (0,)),
    # AMD lists
    (make("hip", smi=AMD, **{CVD: "1"}), "rocm", True, True, (1,)),
    (make("hip", smi=AMD, **{HVD: "1,3"}), "rocm", True, True, (1, 3)),
    (make("hip", smi=AMD, **{RVD: "2,3"}), "rocm", True, True, (2, 3)),
    (make("hip", smi=AMD, **{HVD: "0,1", CVD: "0,1"}), "rocm", True, True, (0, 1)),
    (make("hip", smi=AMD, **{HVD: "0,1", CVD: "1,0"}), "rocm", True, True, (0, 1)),
    (make("hip", smi=AMD, **{HVD: "0", CVD: "0,1"}), "rocm", True, False, NO),
    (make("hip", smi=AMD, **{RVD: "0", HVD: "0"}), "rocm", True, True, (0,)),
    (make("hip", smi=AMD, **{RVD: "1", HVD: "1"}), "rocm", True, False, NO),
    (make("hip", smi=AMD, **{RVD: "1", CVD: "0,1"}), "rocm", True, False, NO),
    (make("hip", smi=AMD, **{RVD: "4,5,6,7", HVD: "1,3"}), "rocm", True, True, (5, 7)),
    (make("hip", smi=AMD, **{RVD: "5,4", CVD: "1,0"}), "rocm", True, True, (4, 5)),
    (make("hip", smi=AMD, **{RVD: "", HVD: "0"}), "rocm", True, False, NO),
    (make("hip", smi=AMD, **{HVD: ""}), "rocm", True, False, NO),
    (make("hip", smi=AMD, **{HVD: "-1"}), "rocm", True, False, NO),
    (make("hip", smi=AMD, **{HVD: "9"}), "rocm", True, False, NO),
    (make("hip", smi={"amd-smi": UUIDS}, **{HVD: "GPU-cc"}), "rocm", True, True, (2,)),
    (make("hip", smi={"amd-smi": UUIDS}, **{RVD: "GPU-bb", HVD: "0"}), "rocm", True, True, (1,)),
    (make("hip", smi={"amd-smi": UUIDS}, **{HVD: "1", CVD: "GPU-bb"}), "rocm", True, True, (1,)),
    (make("hip", smi={"amd-smi": UUIDS}, **{HVD: "1", CVD: "GPU-aa"}), "rocm", True, False, NO),
    (make("hip", smi=AMD, **{AVD: "0"}), "rocm", True, True, ALL8),
    # Ascend lists
    (make("cpu", npu=True, smi=ASC, **{AVD: "0,1,2,5"}), "npu", True, True, (0, 1, 2, 5)),
    (make("cpu", npu=True, smi=ASC, **{AVD: "1,0"}), "npu", True, False, NO),
    (make("cpu", npu=True, smi=ASC, **{AVD: "0,-1"}), "npu", True, False, NO),
    (make("cpu", npu=True, smi=ASC, **{AVD: "-1"}), "npu", True, False, NO),
    (make("cpu", npu=True, smi=ASC, **{AVD: "0,1,2,9"}), "npu", True, False, NO),
    (make("cpu", npu=True, smi=ASC, **{CVD: "0"}), "npu", True, True, ALL8),
    (make("cpu", npu=True, smi=ASC, **{AVD: ""}), "npu", True, False, NO),
    # asked for by name
    (make("cuda", smi=NV, PARITY_PLATFORM="cpu"), "cpu", True, True, (0,)),
    (make("cpu", PARITY_PLATFORM="rocm"), "rocm", False, False, NO),
    (make("cuda", smi=NV, PARITY_PLATFORM="rocm"), "rocm", False, False, NO),
    (make("hip", smi=AMD, PARITY_PLATFORM="rocm"), "rocm", True, True, ALL8),
    (make("cuda", npu=True, smi=NV, PARITY_PLATFORM="cuda"), "cuda", True, True, ALL8),
    (make("cuda", smi=NV, PARITY_PLATFORM="auto"), "cuda", True, True, ALL8),
    (make("cuda", smi=NV, PARITY_PLATFORM=" cpu "), "cpu", True, True, (0,)),
    (make("cuda", smi=NV, PARITY_PLATFORM=""), "cuda", True, True, ALL8),
    (make("cuda", smi=NV, PARITY_PLATFORM="CUDA"), "cuda", True, False, ALL8),
    (make("hip", smi=AMD, PARITY_PLATFORM="amd"), "rocm", True, False, ALL8),
]
VENDORS = {kind.name: (kind.vendor, kind.device_type) for kind in KINDS}


def of(facts: Facts, **how: object):
    return decide(facts, platforms=KINDS, **how)


@pytest.mark.parametrize(("facts", "name", "built", "usable", "devices"), TABLE)
def test_the_table_of_machines_holds(facts, name, built, usable, devices):
    decision = of(facts)
    assert (decision.platform, decision.is_built_for) == (name, built), decision
    assert (decision.is_usable_here, decision.devices) == (usable, devices), decision
    assert (decision.vendor, decision.device_type) == VENDORS[name]
    assert all(decision.reasons)


def test_the_table_is_long_enough_and_has_no_line_twice():
    assert len(TABLE) >= 80
    assert len({str(facts.to_json()) for facts, *_ in TABLE}) == len(TABLE)


def test_errors_and_only_errors_make_visible_devices_unusable():
    for facts, *_ in TABLE:
        decision = of(facts)
        assert not (decision.errors and decision.is_usable_here)
        if decision.is_usable_here:
            assert decision.is_built_for
            assert decision.devices


# ---- random facts ------------------------------------------------------------------------------

TEXTS = [
    "",
    "0",
    "1,0",
    "0,1",
    "-1",
    "0,-1,2",
    "0,0",
    "GPU-aa",
    "MIG-1",
    "x",
    "9",
    " 2 ",
    ",",
    "0,,1",
]
NAMES = [CVD, HVD, RVD, AVD, "PARITY_PLATFORM", "CUDA_VISIBLE_DEVICE", "hip_visible_devices", "X"]
ANSWERS = ["absent", "timeout", "failed", "garbage", 0, 1, 8, UUIDS, ()]


def random_facts(seed: int) -> Facts:
    draw = random.Random(seed)
    tools = draw.sample(
        ["nvidia-smi", "amd-smi", "rocm-smi", "npu-smi", "odd-smi"], draw.randint(0, 5)
    )
    values = [
        *TEXTS,
        "cpu",
        "rocm",
        "cuda",
        "npu",
        "".join(chr(draw.randint(1, 900)) for _ in range(6)),
    ]
    return Facts(
        torch=draw.choice(list(BUILDS.values())),
        plugins=draw.choice([{}, {"torch_npu": None}, {"other": "1"}]),
        environment={name: draw.choice(values) for name in draw.sample(NAMES, draw.randint(0, 6))},
        smi=tuple(probe(tool, draw.choice(ANSWERS)) for tool in tools),
        device_counts={
            name: draw.choice([None, 0, 1, 8])
            for name in draw.sample(["kfd", "nvidia-driver", "odd"], draw.randint(0, 3))
        },
        device_nodes=tuple(
            draw.sample(["/dev/kfd", "/dev/nvidia0", "/dev/odd"], draw.randint(0, 3))
        ),
        versions=draw.choice([{}, {"ray": "2.60.0"}, {"ray": "odd"}, {"ray": None}]),
    )


def shuffled(facts: Facts, seed: int) -> Facts:
    draw = random.Random(seed)

    def keys(mapping):
        return dict(draw.sample(list(mapping.items()), len(mapping)))

    return replace(
        facts,
        plugins=keys(facts.plugins),
        environment=keys(facts.environment),
        smi=tuple(draw.sample(facts.smi, len(facts.smi))),
        device_counts=keys(facts.device_counts),
        versions=keys(facts.versions),
    )


def test_a_thousand_random_machines_decide_the_same_in_any_order_and_none_raises():
    for seed in range(1000):
        facts = random_facts(seed)
        decision = of(facts)
        again = decide(
            Facts.from_json(shuffled(facts, seed).to_json()),
            platforms=random.Random(seed).sample(KINDS, len(KINDS)),
        )
        assert decision == again, facts
        assert decision.platform in VENDORS


@given(st.dictionaries(st.sampled_from(NAMES), st.text(max_size=12)))
def test_any_text_in_a_variable_is_survived(environment):
    for build in ("cuda", "hip"):
        of(replace(make(build, smi={"nvidia-smi": 4, "amd-smi": 4}), environment=environment))
    of(replace(make("cpu", npu=True, smi=ASC), environment=environment))


def test_nothing_but_the_build_and_the_override_changes_the_vendor():
    for seed in range(300):
        facts = random_facts(seed)
        environment = {k: v for k, v in facts.environment.items() if k != "PARITY_PLATFORM"}
        bare = Facts(torch=facts.torch, plugins=facts.plugins)
        assert of(replace(facts, environment=environment)).vendor == of(bare).vendor


# ---- what the decision says --------------------------------------------------------------------


def test_a_cpu_only_process_of_an_amd_cluster_stays_amd_and_says_why_it_computes_nothing():
    decision = of(make("hip", smi={"rocm-smi": "absent", "amd-smi": "absent"}, nodes=["/dev/kfd"]))
    said = "; ".join(decision.reasons)
    assert "torch 2.13.0+rocm7.2 is built for ROCm 7.2.26015" in said
    assert "rocm-smi isn't there" in said
    assert "a node isn't taken for a device" in said
    assert not decision.errors


def test_contradicting_lists_are_one_message_with_both_names_values_and_the_line_to_remove():
    (error,) = of(make("hip", smi=AMD, **{HVD: "0", CVD: "0,1"})).errors
    assert "HIP_VISIBLE_DEVICES=0 and CUDA_VISIBLE_DEVICES=0,1 contradict" in error
    assert "remove the line that sets CUDA_VISIBLE_DEVICES" in error


def test_lists_that_cancel_out_are_answered_with_the_pair_that_works():
    (error,) = of(make("hip", smi=AMD, **{RVD: "5", HVD: "5"})).errors
    assert "HIP_VISIBLE_DEVICES=5 counts inside ROCR_VISIBLE_DEVICES=5" in error
    assert error.endswith("keep ROCR_VISIBLE_DEVICES=5 with HIP_VISIBLE_DEVICES=0.")


def test_ids_that_the_machine_lacks_are_named():
    (error,) = of(make("cpu", npu=True, smi={"npu-smi": 4}, **{AVD: "0,1,2,5"})).errors
    assert "names 5, which this machine hasn't (it has 0, 1, 2, 3)" in error


def test_an_order_that_the_runtime_does_not_understand_is_refused_with_the_right_one():
    (error,) = of(make("cpu", npu=True, smi=ASC, **{AVD: "1,0"})).errors
    assert "write ASCEND_RT_VISIBLE_DEVICES=0,1" in error


def test_an_unknown_override_is_an_error_with_the_nearest_name():
    (error,) = of(make("cuda", smi=NV, PARITY_PLATFORM="cdua")).errors
    assert error.startswith("PARITY_PLATFORM is 'cdua'; known: auto, cpu, cuda, npu, rocm.")
    assert "Did you mean 'cuda'?" in error
    (error,) = of(make("cuda", smi=NV), wanted="rocmm").errors
    assert error.startswith("platform is 'rocmm'")


def test_the_key_of_the_run_file_wins_over_the_variable():
    facts = make("cuda", smi=NV, PARITY_PLATFORM="rocm")
    assert of(facts, wanted="cpu").source == "key"
    assert of(facts, wanted="cpu").platform == "cpu"
    assert of(facts).source == "variable"
    assert of(make("cuda", smi=NV)).source == "build"


def test_hardware_that_torch_cannot_drive_is_reported_with_what_to_install():
    (warning,) = of(make("cpu", smi={"nvidia-smi": 2})).warnings
    assert "nvidia-smi lists 2 devices of nvidia, which this torch can't drive" in warning
    assert "install a CUDA build of torch" in warning
    assert of(make("cpu", smi={"nvidia-smi": 2}, PARITY_PLATFORM="cpu")).warnings == ()


def test_two_backends_of_one_torch_are_said_and_the_specific_one_is_taken():
    (warning,) = of(make("cuda", npu=True, smi=ASC)).warnings
    assert "torch could drive cuda (CUDA 13.0) too; npu is the more specific" in warning


def test_sources_that_disagree_are_a_warning():
    (warning,) = of(make("hip", smi={"amd-smi": 4, "rocm-smi": 8})).warnings
    assert warning == "amd-smi lists 4 devices and rocm-smi 8; amd-smi is believed."


def test_ray_s_refusal_of_a_lone_list_is_foretold():
    facts = make("hip", smi=AMD, versions={"ray": "2.60.0"}, **{RVD: "0"})
    assert any("Ray 2.60.0 refuses ROCR_VISIBLE_DEVICES" in each for each in of(facts).warnings)
    older = replace(facts, versions={"ray": "2.44.1"})
    assert not of(older).warnings


def test_misspelt_and_foreign_variables_are_reported():
    facts = make("cuda", smi=NV, CUDA_VISIBLE_DEVICE="0", **{HVD: "1"})
    said = " ".join(of(facts).warnings)
    assert "CUDA_VISIBLE_DEVICE is set, and nothing reads it; did you mean CUDA_VISIBLE_DEV" in said
    assert "HIP_VISIBLE_DEVICES=1 is set, and has no effect on platform cuda" in said


def test_a_platform_whose_own_code_fails_is_an_error_and_no_exception():
    class Broken(CpuPlatform):
        for _name in [n for n in CpuPlatform.__dict__ if not n.startswith("__")]:
            locals()[_name] = CpuPlatform.__dict__[_name]
        name = "broken"
        precedence = 200

        @classmethod
        def built_for(cls, facts):
            raise RuntimeError("no")

    decision = decide(make("cpu"), platforms=[*KINDS, Broken])
    assert decision.platform == "cpu"
    assert "platform broken failed to read the facts: RuntimeError('no')" in decision.errors[0]
    asked = decide(make("cpu"), wanted="cpu", platforms=[*KINDS, Broken])
    assert (asked.is_usable_here, asked.errors) == (True, ())
    assert "platform broken failed" in asked.warnings[0]


def test_what_a_platform_says_wrongly_is_said_and_no_exception():
    class Odd(CpuPlatform):
        for _name in [n for n in CpuPlatform.__dict__ if not n.startswith("__")]:
            locals()[_name] = CpuPlatform.__dict__[_name]
        name = "odd"
        precedence = 200
        answer = "odd 1"
        count_sources = ("odd",)

        @classmethod
        def built_for(cls, facts):
            return cls.answer

        @classmethod
        def advice(cls, facts):
            raise RuntimeError("no advice")

    facts = make("cpu", counts={"odd": 1})
    decision = decide(facts, platforms=[*KINDS, Odd])
    assert (decision.platform, decision.is_usable_here) == ("odd", True)
    assert decision.warnings == ("platform odd failed to give advice: RuntimeError('no advice').",)
    Odd.answer = 3
    assert (
        "platform odd failed to read the facts" in decide(facts, platforms=[*KINDS, Odd]).errors[0]
    )


def test_a_count_that_no_machine_has_is_no_answer():
    decision = of(make("hip", counts={"kfd": 10**12}))
    assert (decision.devices, decision.is_usable_here) == (None, False)
    assert "kfd says 1000000000000 devices, which no machine has" in decision.reasons


def test_a_name_in_capitals_is_answered_with_the_one_that_was_meant():
    (error,) = of(make("cpu", PARITY_PLATFORM="ROCM")).errors
    assert error.endswith("Did you mean 'rocm'?")


def test_the_slices_of_a_card_and_the_card_do_not_disagree():
    slices = tuple(SmiDevice(0, f"MIG-{letter}") for letter in "abc")
    smi = (SmiProbe("nvidia-smi", "ok", devices=slices),)
    decision = of(replace(make("cuda", counts={"nvidia-driver": 1}), smi=smi))
    assert decision.devices == ("MIG-a",)
    (warning,) = decision.warnings
    assert "sees one MIG slice and nothing beside it: MIG-a of 3 devices" in warning


# ---- what a run does with it -------------------------------------------------------------------


def test_only_the_default_build_on_a_machine_without_a_trace_computes_on_the_cpu():
    bare = make("cuda", smi={"nvidia-smi": "absent"})
    decision = choose("auto", bare)
    assert (decision.platform, decision.is_usable_here) == ("cpu", True)
    assert "no trace of nvidia devices; running on the CPU" in decision.warnings[-1]
    assert choose("auto", bare, needs_device=False).platform == "cuda"
    assert choose("cuda", bare).platform == "cuda"
    for traced in (
        make("cuda", smi={"nvidia-smi": "failed"}),
        make("cuda", nodes=["/dev/nvidia3"]),
        make("cuda", counts={"nvidia-driver": 0}),
        make("cuda", **{CVD: ""}),
    ):
        assert has_trace(CudaPlatform, traced)
        assert choose("auto", traced).platform == "cuda"
    assert choose("auto", make("hip")).platform == "rocm"
    assert choose("auto", make("cpu", npu=True)).platform == "npu"


def test_a_run_ends_where_the_decision_has_errors():
    with pytest.raises(ConfigError, match=r"PARITY_PLATFORM is 'tpu9'; known: auto, cpu"):
        choose("auto", make("cpu", PARITY_PLATFORM="tpu9"))
    with pytest.raises(ConfigError, match="contradict each other"):
        choose("auto", make("hip", smi=AMD, **{HVD: "0", CVD: "1"}))


def test_this_process_loads_what_it_was_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARITY_PLATFORM", "cpu")
    assert isinstance(load(), CpuPlatform)
    assert isinstance(load("cpu"), CpuPlatform)


def test_a_platform_that_this_build_lacks_is_refused_with_the_way_out():
    with pytest.raises(UnsupportedError, match=r"install the package torch_npu.*platform=cpu"):
        load("npu")


def test_the_runtime_is_asked_only_where_nobody_could_list_devices(monkeypatch):
    asked = []
    monkeypatch.setattr(RocmPlatform, "require_usable", lambda self: asked.append(self.name))
    assert isinstance(use(of(make("hip"))), RocmPlatform)
    assert asked == ["rocm"]
    for facts in (make("hip", counts={"kfd": 0}), make("hip", smi=AMD, **{HVD: "-1"})):
        with pytest.raises(UnsupportedError, match=r"platform rocm can't be used.*parity doctor"):
            use(of(facts))
    assert asked == ["rocm"]
    assert isinstance(use(of(make("hip", smi=AMD))), RocmPlatform)


def test_no_vendor_tool_is_run_where_the_cpu_was_asked_for(monkeypatch):
    asked = []

    def collect(*, probe_tools: bool):
        asked.append(probe_tools)
        return make("cpu")

    monkeypatch.setattr("parity.platforms.detect.collect", collect)
    for wanted, variable in (("cpu", ""), ("auto", "cpu"), ("auto", ""), ("auto", "auto")):
        monkeypatch.setenv("PARITY_PLATFORM", variable)
        decide_here(wanted)
    assert asked == [False, False, True, True]
