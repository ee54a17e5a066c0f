"""Publication of weights from the trainer to engines; transports by name.

`transfer.py` is the contract; docs/weights.md draws the protocol.
"""

from parity.registry import Registry

TRANSPORTS = Registry(
    "weights",
    {
        "direct": "parity.weights.direct:DirectTransfer",
        "zmq_ipc": "parity.weights.zmq_ipc:ZmqTransfer",
        "collective": "parity.weights.collective:CollectiveTransfer",
        "disk": "parity.weights.disk:DiskTransfer",
    },
)
