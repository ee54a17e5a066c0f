"""The transport of docs/how-to/add-a-transport.md works as it is written; so do the commands."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from unit.weights.ends import CONFIG, at_once, same, store_of
from unit.weights.peer import tensors

from parity.errors import TransferError
from parity.weights.config import WeightsConfig
from parity.weights.transfer import Weights

ROOT = Path(__file__).parents[3]


def test_the_example_transport_publishes_refuses_and_proves():
    page = (ROOT / "docs/how-to/add-a-transport.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    parts: dict[str, object] = {"__name__": "queue_transport"}
    exec(compile(example, "queue_transport.py", "exec"), parts)
    store = store_of(tensors(0))
    link = parts["QueueLink"](CONFIG)
    receiver = parts["QueueReceiver"](link, store)
    transfer = parts["QueueTransfer"](link, CONFIG)

    async def scenario() -> None:
        await transfer.publish(Weights(tensors(1)), version=1, switch=at_once)
        assert same(store, tensors(1))
        with pytest.raises(TransferError, match="missing"):
            await transfer.publish(Weights(tensors(2)[1:]), version=2, switch=at_once)
        assert "missing" in receiver.failures[-1]
        await transfer.prove(Weights(tensors(3)), version=3, switch=at_once)
        assert same(store, tensors(3))
        await transfer.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_bench_of_the_docs_prints_its_table():
    assert "python -m bench.weights" in (ROOT / "docs/weights.md").read_text()
    small = ["--mib", "8", "--repeats", "1", "--bucket-mib", "0.25"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.weights", *small],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
        check=True,
    )
    for way in ("memcpy", "zmq_ipc, verify=digests", "direct, verify=off", "pickle"):
        assert way in done.stdout


def test_the_defaults_of_the_docs_are_the_defaults():
    page = (ROOT / "docs/weights.md").read_text()
    config = WeightsConfig()
    rows = dict(re.findall(r"\| `weights\.(\w+)` \| `?([^|`]+?)`? \|", page))
    assert rows["verify"] == config.verify
    for key in ("bucket_mib", "timeout_s", "commit_timeout_s"):
        assert float(rows[key]) == getattr(config, key)
