"""The failure budget: a share of the newest episodes, each group counted once, kept in JSON."""

import json

import pytest

from parity.errors import CheckpointError, TrainingError
from parity.rollouts.budget import FailureBudget


def spent(budget: FailureBudget, *, first: int, groups: int) -> int | None:
    """How many groups of one failed episode each it takes to spend the budget; None: more."""
    for number in range(groups):
        try:
            budget.add(first + number, failed=1, ended=1, reason="gone")
        except TrainingError:
            return number + 1
    return None


def test_a_long_good_past_does_not_buy_a_run_of_failures() -> None:
    budget = FailureBudget(0.5)
    for index in range(100):
        budget.add(index, failed=0, ended=1000, reason="")
    assert spent(budget, first=100, groups=1000) == 501


def test_few_episodes_are_not_judged() -> None:
    budget = FailureBudget(0.0)
    assert spent(budget, first=0, groups=99) is None
    with pytest.raises(TrainingError, match=r"100 of the last 100 episodes failed.*gone"):
        budget.add(99, failed=1, ended=1, reason="gone")


def test_a_budget_goes_on_where_a_checkpoint_left_it() -> None:
    budget = FailureBudget(0.1)
    for index in range(25):
        budget.add(index, failed=index % 4 == 0, ended=8, reason="x")
    state = json.loads(json.dumps(budget.state()))
    again = FailureBudget(0.1, state=state)
    assert again.state() == state
    fresh = FailureBudget(0.1)
    unbroken, resumed, forgetful = (
        spent(each, first=100, groups=200) for each in (budget, again, fresh)
    )
    assert unbroken == resumed == 15  # 22 of 215
    assert forgetful == 100


def test_a_group_that_a_resumed_run_meets_again_counts_once_and_as_it_ended_last() -> None:
    budget = FailureBudget(0.5)
    budget.add(0, failed=8, ended=8, reason="x")
    budget.add(1, failed=0, ended=8, reason="")
    budget.note(0, failed=2, ended=8)
    assert budget.state() == [[1, 0, 8], [0, 2, 8]]


def test_failures_of_an_earlier_process_end_the_run_only_with_a_new_one() -> None:
    budget = FailureBudget(0.1, state=[[0, 100, 200]])
    budget.note(1, failed=8, ended=8)
    budget.add(2, failed=0, ended=8, reason="")
    with pytest.raises(TrainingError, match="109 of the last 224"):
        budget.add(3, failed=1, ended=8, reason="again")


@pytest.mark.parametrize("state", [3, [3], [[1, 2]], [["a", 1, 2]]])
def test_a_state_of_another_form_is_refused(state) -> None:
    with pytest.raises(CheckpointError, match="failure budget"):
        FailureBudget(0.1, state=state)
