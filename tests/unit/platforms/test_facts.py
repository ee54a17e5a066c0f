"""Facts go to JSON and back unchanged; a file that holds something else is refused by name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from unit.platforms.made_facts import make
from unit.platforms.test_detect import TABLE, random_facts

from parity.errors import ConfigError
from parity.platforms.facts import Facts, read_facts


def test_facts_survive_json():
    for facts in [*(row[0] for row in TABLE), *map(random_facts, range(100))]:
        back = Facts.from_json(json.loads(json.dumps(facts.to_json())))
        ordered = tuple(sorted(facts.smi, key=lambda probe: probe.tool))
        assert back == replace(facts, smi=ordered, device_nodes=tuple(sorted(facts.device_nodes)))


def test_what_a_file_leaves_out_is_unknown(tmp_path):
    path = tmp_path / "facts.json"
    path.write_text('{"torch": {"version": "2.9", "hip": "7.2"}}')
    facts = read_facts(path)
    assert facts == Facts(torch=facts.torch)
    assert facts.torch is not None
    assert (facts.torch.hip, facts.torch.cuda) == ("7.2", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "isn't JSON"),
        ("[]", "facts is \\[\\]; it must be an object"),
        ('{"torhc": null}', "facts has no 'torhc'.*Did you mean 'torch'"),
        ('{"torch": {}}', "facts.torch.version is missing"),
        ('{"torch": {"version": 2}}', "facts.torch.version is 2; it must be a text"),
        ('{"torch": {"version": "2", "rocm": "7"}}', "facts.torch has no 'rocm'"),
        ('{"smi": [{"tool": "x"}]}', r"facts.smi\[0\].status is missing"),
        ('{"smi": [{"tool": "x", "status": "okay"}]}', "status is 'okay'; known: ok, absent"),
        ('{"smi": [{"tool": "x", "status": "ok", "devices": [{}]}]}', "index is missing"),
        ('{"smi": {}}', "facts.smi is {}; it must be a list"),
        ('{"device_counts": {"kfd": true}}', "facts.device_counts.kfd is True"),
        ('{"device_counts": {"kfd": -1}}', "whole number from 0 to 1024"),
        ('{"device_counts": {"kfd": 100000000}}', "whole number from 0 to 1024"),
        ('{"device_counts": {"kfd": NaN}}', "kfd is nan; it must be a whole number"),
        ('{"device_counts": {"kfd": ' + "9" * 5000 + "}}", "can't be read: .*4300 digits"),
        ("[" * 100_000, "can't be read: maximum recursion depth"),
        ('{"torch": {"version": "2", "hip": ""}}', "facts.torch.hip is empty"),
        ('{"torch": null, "torch": {"version": "2"}}', "has the key 'torch' twice"),
        ('{"environment": {"A": "1", "A": "2"}}', "has the key 'A' twice"),
        (
            '{"smi": [{"tool": "x", "status": "ok"}, {"tool": "x", "status": "absent"}]}',
            "facts.smi has 'x' twice",
        ),
        (
            '{"smi": [{"tool": "x", "status": "ok", "devices": ['
            + '{"index": 0},' * 1024
            + '{"index": 0}]}]}',
            "has 1025 entries; at most 1024",
        ),
        ('{"torch": "' + "x" * 5000 + '"}', r"torch is 'x{119}\.\.\.; it must be an object"),
        ('{"environment": {"A": null}}', "facts.environment.A is missing"),
        ('{"environment": {"A": 1}}', "facts.environment.A is 1; it must be a text"),
        ('{"device_nodes": [1]}', r"facts.device_nodes\[0\] is 1"),
    ],
)
def test_a_file_that_holds_something_else_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "facts.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_facts(path)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        read_facts(tmp_path / "none.json")


def test_a_variable_is_read_without_spaces_around_it():
    facts = make(PARITY_PLATFORM=" cpu ")
    assert facts.variable("PARITY_PLATFORM") == "cpu"
    assert facts.variable("OTHER") is None


def test_a_file_without_an_end_is_not_read_to_its_end():
    with pytest.raises(ConfigError, match="is longer than"):
        read_facts(Path("/dev/zero"))
