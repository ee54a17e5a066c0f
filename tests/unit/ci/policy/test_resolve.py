import pytest
from ci_repository import CI_TOML, IMPORT, inventory, repository

from parity.ci.loading import load_config
from parity.ci.model import Event, Why
from parity.ci.policy.changes import affected, read_changes
from parity.ci.policy.resolve import resolve
from parity.ci.policy.select import Asked, select
from parity.errors import ConfigError

ALL = {"megatron", "fsdp", "long", "short"}


@pytest.fixture
def config(tmp_path):
    return repository(tmp_path, {})


# event, schedule, labels, cadence -> cadence, scope, labels in scope, nightly tests, history
TABLE = {
    "a pull request": (("pull_request", None, ()), "regular", "none", set(), False, False),
    "a label": (
        ("pull_request", None, ("run-ci-long",)), "regular", "none", {"long"}, False, False),
    "every label": (
        ("pull_request", None, ("run-ci-all",)), "regular", "all", ALL, False, False),
    "the image label": (
        ("pull_request", None, ("run-ci-image",)), "regular", "image", ALL - {"long"}, False, False),  # noqa: E501
    "explicit over subtraction": (
        ("pull_request", None, ("run-ci-image", "run-ci-long")), "regular", "image", ALL, False,
        False),
    "the higher scope": (
        ("pull_request", None, ("run-ci-all", "run-ci-image")), "regular", "all", ALL, False, False),  # noqa: E501
    "the nightly label": (
        ("pull_request", None, ("nightly",)), "nightly", "nightly", ALL - {"long"}, True, False),
    "a night": (
        ("schedule", "0 15 * * 0-5", ()), "nightly", "nightly", ALL - {"long"}, True, True),
    "a week": (("schedule", "0 15 * * 6", ()), "weekly", "all", ALL, True, True),
    "a dispatch": (("workflow_dispatch", None, ()), "regular", "all", ALL, False, False),
    "a call with a cadence": (
        ("workflow_call", None, (), "release"), "release", "all", ALL, True, False),
    "a cadence over the event": (
        ("pull_request", None, ("nightly",), "weekly"), "weekly", "all", ALL, True, False),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_event_schedule_and_labels_decide_cadence_and_scope(name, config):
    event, cadence, scope, labels, nightly, history = TABLE[name]

    policy = resolve(Event(*event), config)

    assert (policy.cadence, policy.scope) == (cadence, scope)
    assert policy.include_labels == labels
    assert (policy.admits_nightly, policy.writes_history) == (nightly, history)


REFUSED = {
    "an unknown event": (Event("pull_request_target"), ["pull_request_target", "pull_request'?"]),
    "an unknown cron line": (Event("schedule", "0 16 * * 6"), ["0 16 * * 6", "0 15 * * 6"]),
    "a schedule without its line": (Event("schedule"), ["--schedule", "0 15 * * 6"]),
    "a line on another event": (Event("push", "0 15 * * 6"), ["leave the line out"]),
    "a call without a cadence": (Event("workflow_call"), ["--cadence", "release"]),
    "an unknown cadence": (Event("push", cadence="hourly"), ["hourly", "weekly"]),
    "an unknown CI label": (Event("push", labels=("run-ci-lnog",)), ["run-ci-lnog", "run-ci-long"]),
    "a CI label in other letters": (Event("push", labels=("Run-CI-long",)), ["Run-CI-long"]),
    "shell text in a CI label": (Event("push", labels=("run-ci-$(id)",)), ["run-ci-$(id)"]),
    "a CI label with a line break": (Event("push", labels=("run-ci-long\nx=1",)), ["unknown"]),
    "an empty event": (Event(""), ["''", "push"]),
    "a cron line with another space": (Event("schedule", "0  15 * * 6"), ["unknown", "known"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_event_that_nobody_knows_is_refused(name, config):
    event, wanted = REFUSED[name]

    with pytest.raises(ConfigError) as error:
        resolve(event, config)

    for word in wanted:
        assert word in str(error.value) or word == "unknown"


def test_two_labels_for_two_cadences_are_refused(tmp_path):
    toml = CI_TOML + '[workflow_labels.weekly]\nmeaning = "x"\ncadence = "weekly"\n'
    config = repository(tmp_path, {}, toml=toml)

    with pytest.raises(ConfigError, match="different cadences"):
        resolve(Event("push", labels=("nightly", "weekly")), config)


def test_workflow_labels_are_consumed_and_others_are_kept_apart(config):
    labels = ("bug", "rebuild-ci-image", "bypass-fail-fast", "run-ci-short", "good first issue")

    policy = resolve(Event("pull_request", labels=labels), config)

    assert policy.consumed == ("bypass-fail-fast", "rebuild-ci-image")
    assert policy.one_shot == ("rebuild-ci-image",)
    assert policy.ignored == ("bug", "good first issue")
    assert policy.explicit_labels == {"short"}
    assert not policy.fail_fast


def test_match_all_asks_for_every_label(config):
    assert resolve(Event("push"), config, match_all=True).explicit_labels == ALL


def test_a_broad_scope_is_never_pruned(config):
    assert resolve(Event("pull_request"), config).prunes
    assert not resolve(Event("pull_request", labels=("run-ci-all",)), config).prunes
    assert not resolve(Event("push"), config).prunes


def test_the_order_of_labels_changes_nothing(config):
    labels = ("run-ci-all", "run-ci-long", "nightly", "x", "run-ci-short")

    policies = {
        resolve(Event("push", labels=order), config)
        for order in (labels, labels[::-1], (*labels, *labels))
    }

    assert len(policies) == 1


FILES = {
    "tests/unit/test_small.py": "",
    "tests/hw/test_a.py": IMPORT + 'register_cuda_ci(60, "h100-4", labels=["fsdp"])',
    "tests/hw/test_b.py": IMPORT + 'register_rocm_ci(60, "mi300-4", labels=["megatron", "long"])',
    "tests/hw/test_c.py": IMPORT + 'register_npu_ci(60, "npu-8", labels=["fsdp"])',
    "tests/hw/test_d.py": IMPORT + 'register_cuda_ci(60, "h100-4", labels=["fsdp"], nightly=True)',
    "tests/hw/test_e.py": IMPORT
    + 'register_cuda_ci(60, "h100-4", labels=["fsdp"], disabled={"reason": "hangs", "issue":'
    + ' "https://example.com/o/r/issues/7", "owner": "@a", "expires": "2026-07-01"})',
}


def outcome(event, tmp_path, *, toml=CI_TOML, asked=None, listing=None):
    found = inventory(tmp_path, FILES, toml=toml)
    config = repository(tmp_path, {}, toml=toml)
    spared = None if listing is None else affected(read_changes(listing), found, config)
    policy = resolve(event, config)
    selection = select(found, policy, config, asked or Asked(), spared)
    reasons = {each.registration.path[-4]: each.reason.kind for each in selection.skipped}
    texts = [each.reason.text for each in selection.skipped]
    assert all(texts)
    assert len(selection.selected) + len(selection.skipped) == len(found.registrations)
    return {each.path[-4] for each in selection.selected}, reasons


def test_every_test_that_doesnt_run_has_a_reason(tmp_path):
    selected, reasons = outcome(Event("pull_request", labels=("run-ci-fsdp",)), tmp_path)

    assert selected == {"l", "a"}
    assert reasons == {
        "b": Why.LABELS, "c": Why.CADENCE, "d": Why.NIGHTLY, "e": Why.DISABLED,
    }  # fmt: skip


def test_subtraction_lets_a_test_in_through_another_label(tmp_path):
    selected, _ = outcome(Event("schedule", "0 15 * * 0-5"), tmp_path)

    assert selected == {"l", "a", "b", "c", "d"}


def test_a_veto_keeps_a_test_out_unless_it_is_asked_for(tmp_path):
    toml = CI_TOML.replace('minus = ["long"]', 'veto = ["long"]')
    event = Event("schedule", "0 15 * * 0-5")

    assert outcome(event, tmp_path, toml=toml)[1]["b"] == Why.VETOED
    asked = Event("schedule", "0 15 * * 0-5", labels=("run-ci-megatron",))
    assert "b" in outcome(asked, tmp_path, toml=toml)[0]


def test_one_file_reruns_whatever_its_labels_but_not_when_disabled(tmp_path):
    event = Event("pull_request")
    for file, is_selected in (("b", True), ("d", True), ("c", True), ("e", False)):
        path = f"tests/hw/test_{file}.py"
        selected, reasons = outcome(event, tmp_path, asked=Asked(files=[path]))
        assert selected == ({file} if is_selected else set())
        assert set(reasons.values()) <= {Why.NOT_ASKED, Why.DISABLED}


def listing(*paths):
    return "".join(f"M\0{path}\0" for path in paths)


def test_a_change_of_text_alone_spares_every_suite(tmp_path):
    selected, reasons = outcome(
        Event("pull_request"), tmp_path, listing=listing("README.md", "docs/x/y.png")
    )

    assert not selected
    assert reasons["l"] == Why.PRUNED


def test_a_changed_test_affects_its_own_suites_only(tmp_path):
    event = Event("pull_request")

    assert outcome(event, tmp_path, listing=listing("tests/unit/test_small.py"))[0] == {"l"}
    assert outcome(event, tmp_path, listing=listing("tests/hw/test_a.py"))[0] == set()


def test_what_was_asked_for_by_name_is_not_pruned(tmp_path):
    event = Event("pull_request", labels=("run-ci-fsdp",))

    selected, reasons = outcome(event, tmp_path, listing=listing("README.md"))

    assert selected == {"a"}
    assert reasons["l"] == Why.PRUNED


OPEN = {
    "an unknown path": listing("README.md", "src/new.py"),
    "the data file itself": listing("ci.toml"),
    "no path": "",
    "an empty list": "\0",
    "a list that is cut off": "M\0README.md",
    "an unknown status": "X\0README.md\0",
    "an unmerged path": "U\0README.md\0",
    "a rename without its second path": "R100\0README.md\0",
    "lines instead of zeros": "M\tREADME.md\n",
    "a path that leaves the repository": listing("../README.md"),
    "an absolute path": listing("/README.md"),
    "a rename from an unknown path": "R100\0src/a.py\0docs/a.md\0",
    "a test that is gone": "D\0tests/hw/test_gone.py\0",
}


@pytest.mark.parametrize("name", OPEN)
def test_pruning_fails_open(name, tmp_path):
    assert outcome(Event("pull_request"), tmp_path, listing=OPEN[name])[0] == {"l"}


def test_a_rename_counts_both_paths():
    changes = read_changes("R087\0docs/a.md\0src/a.py\0A\0b\0")

    assert changes.paths == ("docs/a.md", "src/a.py", "b")


def test_no_rule_can_say_that_the_data_file_affects_nothing(tmp_path):
    toml = CI_TOML.replace('"*.md"', '"*.md", "*.toml"')
    event = Event("pull_request")

    assert not outcome(event, tmp_path, toml=toml, listing=listing("pyproject.toml"))[0]
    assert outcome(event, tmp_path, toml=toml, listing=listing("ci.toml"))[0] == {"l"}


def test_a_changed_path_that_would_command_the_log_or_is_no_text_only_names_itself(tmp_path):
    tests = inventory(tmp_path, {"tests/unit/test_a.py": "x = 1\n"})
    config = load_config(tmp_path)
    hostile = b"M\0docs/a\n::add-mask::x\r##[error]y\0A\0docs/\xff.md\0M\0docs/\xe2\x80\xae.md\0"
    changes = read_changes(hostile.decode("utf-8", "surrogateescape"))
    found = affected(changes, tests, config)
    assert found.suites == frozenset()  # [[paths]] knows docs/**
    assert found.text.isprintable()
    assert "::" not in found.text
    assert "##[" not in found.text
    unknown = read_changes("M\0odd\n::error::x\0")
    text = affected(unknown, tests, config).text
    assert text == "all suites: no rule of ci.toml knows odd : :error: :x"
