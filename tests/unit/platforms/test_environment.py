"""Variables that Parity sets, and where the user's own value wins."""

import pytest

from parity.platforms.cpu import CpuPlatform
from parity.platforms.cuda import CudaPlatform
from parity.platforms.environment import settings, to_set
from parity.platforms.platform import ROLES
from parity.platforms.rocm import RocmPlatform


def test_a_value_of_the_users_wins_and_says_so():
    user = {"SGLANG_USE_AITER": "0", "HSA_NO_SCRATCH_RECLAIM": ""}
    rows = {each.name: each for each in settings(RocmPlatform(), "rollout", user)}
    own = rows["SGLANG_USE_AITER"]
    assert (own.value, own.default, own.source, own.is_users_own) == ("0", "1", "environment", True)
    assert rows["HSA_NO_SCRATCH_RECLAIM"].value == ""
    ours = rows["NCCL_CUMEM_ENABLE"]
    assert (ours.value, ours.source, ours.is_users_own) == ("0", "rocm", False)
    assert to_set(tuple(rows.values())).keys() == rows.keys() - user.keys()


def test_ray_is_stopped_only_in_processes_whose_devices_parity_chooses():
    def names(platform, role, **how):
        return {each.name for each in settings(platform, role, {}, **how)}

    noset = "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES"
    how = {"ray_version": "2.60.0", "is_under_ray": True}
    assert noset in names(RocmPlatform(), "trainer", **how)
    assert noset in names(RocmPlatform(), "rollout", **how)
    assert noset not in names(RocmPlatform(), "driver", **how)
    assert noset not in names(RocmPlatform(), "trainer")
    assert noset not in names(CudaPlatform(), "trainer", **how)


@pytest.mark.parametrize("role", ROLES)
def test_a_cpu_gets_nothing_set(role):
    assert settings(CpuPlatform(), role, {"NCCL_CUMEM_ENABLE": "1"}, is_under_ray=True) == ()


def test_rows_are_sorted_and_unique():
    names = [each.name for each in settings(RocmPlatform(), "rollout", {}, is_under_ray=True)]
    assert names == sorted(set(names))
