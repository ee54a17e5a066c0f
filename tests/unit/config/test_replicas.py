"""Keys of the pool are taken where there is a pool, and refused where they would do nothing."""

import pytest

from parity.config.arithmetic import check
from parity.config.compose import load_train
from parity.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["placement.router.max_retries=5"], r"router\.max_retries is 5 with runtime=inline"),
        (["placement.engine_restarts=2"], r"engine_restarts is 2 with runtime=inline"),
        (
            ["runtime=ray", "placement.router.check_interval_s=1"],
            r"check_interval_s is 1\.0 and has no effect with placement\.engine_replicas=1",
        ),
        (
            ["runtime=ray", "placement.engine_restarts=2"],
            r"engine_restarts is 2 with placement\.engine_replicas=1",
        ),
        (
            [
                *("runtime=ray", "placement.engine_replicas=2", "placement.kind=colocated"),
                *("placement.trainer_ranks=2", "rollouts.max_lag=0", "placement.engine_restarts=1"),
            ],
            r"engine_restarts is 1 with placement\.kind=colocated",
        ),
        (["placement.router.max_retries=-1"], r"placement\.router\.max_retries is -1"),
    ],
)
def test_a_key_without_effect_is_refused_by_its_name(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(load_train("quickstart", words))


def test_several_replicas_take_every_key_and_come_back_three_times_by_default() -> None:
    words = ["runtime=ray", "placement.engine_replicas=2"]
    config = load_train("quickstart", [*words, "placement.router.stall_timeout_s=20"])
    check(config)
    assert config.placement.router.stall_timeout_s == 20.0
    assert config.placement.restarts == 3
    none = load_train("quickstart", [*words, "placement.engine_restarts=0"])
    check(none)
    assert none.placement.restarts == 0
    assert load_train("quickstart", ["runtime=ray"]).placement.restarts == 0
