import pytest

from parity.training.config import ScheduleConfig
from parity.training.schedules import learning_rate_share


@pytest.mark.parametrize(
    ("shape", "warmup", "final", "total", "shares"),
    [
        ("constant", 0, 0.0, 3, [1.0, 1.0, 1.0, 1.0]),
        ("constant", 4, 0.0, 9, [0.25, 0.5, 0.75, 1.0, 1.0]),
        ("linear", 0, 0.0, 4, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ("linear", 2, 0.5, 4, [0.5, 1.0, 1.0, 0.75, 0.5, 0.5]),
        ("cosine", 0, 0.0, 4, [1.0, 0.8535533906, 0.5, 0.1464466094, 0.0, 0.0]),
        ("cosine", 1, 0.2, 3, [1.0, 1.0, 0.6, 0.2, 0.2]),
        ("linear", 5, 0.0, 3, [0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 0.0]),
    ],
)
def test_shares_by_table(shape, warmup, final, total, shares):
    config = ScheduleConfig(shape=shape, warmup_steps=warmup, final_share=final)
    found = [learning_rate_share(step, config, total) for step in range(len(shares))]
    assert found == pytest.approx(shares, abs=1e-9)


@pytest.mark.parametrize("shape", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_no_step_of_the_run_has_rate_zero(shape, warmup):
    config = ScheduleConfig(shape=shape, warmup_steps=warmup)
    assert all(learning_rate_share(step, config, 10) > 0.0 for step in range(10))
