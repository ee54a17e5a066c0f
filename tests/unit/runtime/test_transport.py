"""Which transport placement chooses, and which device Ray's answer means."""

import pytest

pytest.importorskip("ray")

from parity.errors import ConfigError, UnsupportedError
from parity.runtime.ray.role import logical_index
from parity.runtime.ray.transfer import choose_transport


def test_one_host_shares_memory_and_several_a_named_folder_or_the_network():
    assert choose_transport("auto", is_one_host=True)[0] == "zmq_ipc"
    name, reason = choose_transport("auto", is_one_host=False)
    assert name == "collective"
    assert reason == "engines are on other hosts than trainer rank 0, no weights.dir given"
    assert choose_transport("auto", is_one_host=False, has_dir=True)[0] == "disk"
    assert choose_transport("auto", is_one_host=True, has_dir=True)[0] == "zmq_ipc"
    for wanted in ("collective", "disk"):
        assert choose_transport(wanted, is_one_host=True)[0] == wanted
    with pytest.raises(UnsupportedError, match="stays on one host"):
        choose_transport("zmq_ipc", is_one_host=False)
    with pytest.raises(UnsupportedError, match="doesn't leave its process"):
        choose_transport("direct", is_one_host=True)


def test_a_device_is_found_by_its_place_in_the_nodes_list():
    assert logical_index("3", None) == 3
    assert logical_index("6", ["4", "6"]) == 1
    assert logical_index("GPU-b", ["GPU-a", "GPU-b"]) == 1
    assert logical_index("1", ["GPU-a", "GPU-b"]) == 1
    with pytest.raises(ConfigError, match="gave device '7'"):
        logical_index("7", ["4", "6"])
