"""Every platform of this machine keeps the contract, those of other packages included."""

import inspect
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.errors import UnsupportedError
from parity.platforms.collect import collect
from parity.platforms.decision import Decision
from parity.platforms.detect import decide
from parity.platforms.environment import settings
from parity.platforms.facts import Facts, SmiDevice, SmiProbe, TorchBuild
from parity.platforms.platform import FACT_METHODS, FACT_NAMES, ROLES, Platform
from parity.platforms.plugins import all_platforms
from parity.platforms.telemetry.telemetry import Telemetry
from parity.platforms.visibility.compose import compose

PLATFORMS = all_platforms()
HERE = collect(probe_tools=False)


@pytest.fixture(params=sorted(PLATFORMS))
def kind(request: pytest.FixtureRequest) -> type[Platform]:
    return PLATFORMS[request.param]


def test_it_states_every_fact_and_has_every_method(kind: type[Platform]):
    assert not inspect.isabstract(kind)
    assert {*FACT_NAMES, *FACT_METHODS} <= vars(kind).keys()
    assert kind.name == kind.name.strip().lower()
    assert kind.name.isidentifier()
    assert kind.vendor
    assert kind.device_type
    for name in FACT_NAMES:
        value = getattr(kind, name)
        assert not isinstance(value, list | dict), f"{name} can be changed by accident"


def test_it_can_be_made_and_asked_for_facts_on_a_machine_without_such_a_device(kind):
    platform = kind()
    assert platform.collective_backend == platform.choose_collective()
    assert platform.choose_collective(platform.collective_backend) == platform.collective_backend
    with pytest.raises(UnsupportedError, match=f"isn't one of platform {kind.name}; known: "):
        platform.choose_collective("no_such_backend")
    for version in (None, "2.60.0", "odd"):
        names = platform.ray_noset_variables(version)
        assert len(set(names)) == len(names)
    support = platform.ipc_support(Facts())
    assert support.reason
    assert platform.peak_flops("no such model", "bfloat16") is None
    assert isinstance(platform.patch_model("qwen3"), tuple)
    assert isinstance(kind.remedy(), str)


def test_it_declines_where_nothing_was_built_for_it(kind: type[Platform]):
    assert kind.built_for(Facts()) is None
    bare = kind.built_for(Facts(torch=TorchBuild("2.13.0+cpu")))
    assert (bare is not None) is (kind.precedence == 0)


def test_its_readers_of_this_machine_never_raise_and_use_its_own_names(kind: type[Platform]):
    counts = kind.count_devices()
    assert set(counts) <= set(kind.count_sources)
    assert all(count is None or count >= 0 for count in counts.values())
    assert all(value is None or value for value in kind.read_versions().values())


def test_what_it_sets_has_a_reason_and_yields_to_the_user(kind: type[Platform]):
    for role in ROLES:
        for row in settings(kind(), role, {}, is_under_ray=True):
            assert row.reason
            (own,) = [
                each
                for each in settings(kind(), role, {row.name: "mine"}, is_under_ray=True)
                if each.name == row.name
            ]
            assert own.value == "mine"
            assert own.is_users_own


def test_it_shows_a_child_what_it_was_given(kind: type[Platform]):
    if kind.visibility is None:
        assert kind().visibility_variables == ()
        return
    machine = tuple(SmiDevice(index) for index in range(4))
    parent = compose(kind.visibility, {}, machine)
    for chosen in ([], [0], [1, 3], [0, 1, 2, 3]):
        variables = parent.child_variables(chosen)
        assert set(variables) <= set(kind().visibility_variables)
        assert compose(kind.visibility, variables, machine).devices == tuple(chosen)


def test_it_is_chosen_by_name_whatever_torch_is_and_never_taken_for_usable_then(kind):
    if kind.precedence == 0:
        return
    facts = Facts(torch=TorchBuild("2.13.0+cpu"), environment={"PARITY_PLATFORM": kind.name})
    decision = decide(facts)
    assert (decision.platform, decision.vendor) == (kind.name, kind.vendor)
    assert not decision.is_usable_here
    assert Decision.from_json(json.loads(json.dumps(decision.to_json()))) == decision


@given(
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    st.dictionaries(st.text(max_size=8), st.none() | st.text(max_size=8), max_size=3),
    st.sampled_from(["ok", "absent", "timeout", "failed", "garbage"]),
)
def test_no_facts_make_any_platform_raise(environment, packages, status):
    facts = Facts(
        torch=TorchBuild("0"),
        plugins=packages,
        environment=environment,
        smi=tuple(SmiProbe(tool, status) for kind in PLATFORMS.values() for tool in kind.smi_tools),
        versions=packages,
    )
    for kind in PLATFORMS.values():
        kind.built_for(facts)
        kind.advice(facts)
        kind().ipc_support(facts)
        decide(facts, wanted=kind.name)


def test_its_telemetry_is_a_source_that_never_raises(kind: type[Platform]):
    source = kind().telemetry()
    assert isinstance(source, Telemetry)
    snapshot = source.read()
    assert snapshot.readings or snapshot.problem
    source.close()


def usable(kind: type[Platform]) -> Platform:
    """The platform, where this process can compute on it; skips elsewhere."""
    platform = kind()
    try:
        platform.require_usable()
    except UnsupportedError as error:
        pytest.skip(str(error))
    return platform


def test_a_platform_that_cannot_be_used_says_the_way_out(kind: type[Platform]):
    if kind.built_for(HERE) is not None:
        pytest.skip(f"this torch is built for {kind.name}")
    with pytest.raises(UnsupportedError, match=f"platform={kind.name}.*choose another platform"):
        kind().require_usable()


def test_device_calls_agree_with_each_other(kind: type[Platform]):
    import torch

    platform = usable(kind)
    count = platform.device_count()
    assert count >= 1
    platform.set_device(0)
    assert platform.current_device() == 0
    assert platform.device(0).type == platform.device_type
    with pytest.raises(UnsupportedError, match=f"device {count} was asked"):
        platform.device(count)
    with pytest.raises(UnsupportedError, match=f"device {count} was asked"):
        platform.set_device(count)
    memory = platform.memory(0)
    assert 0 < memory.free_bytes <= memory.total_bytes
    assert platform.device_name(0)
    assert platform.fast_dtypes()
    assert platform.has_fp8(0) in (True, False, None)
    capability = platform.capability(0)
    assert capability is None or len(capability) == 2
    assert platform.module is not None
    assert platform.module.__name__ == f"torch.{platform.device_type}"
    with platform.profiler_range("a span"):
        drawn = torch.rand(4, device=platform.device(0))
    platform.synchronize()
    platform.synchronize(0)
    platform.empty_cache()
    assert drawn.device.type == platform.device_type


def test_a_seed_makes_draws_on_its_device_repeat(kind: type[Platform]):
    import torch

    platform = usable(kind)
    draws = []
    for seed in (3, 3, 4):
        platform.seed(seed)
        draws.append(torch.rand(8, device=platform.device(0)).cpu())
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_allocator_settings_are_applied_or_refused_in_one_sentence(kind: type[Platform]):
    platform = usable(kind)
    with pytest.raises(UnsupportedError, match="allocator settings 'no_such_word:1'"):
        platform.set_allocator("no_such_word:1")
