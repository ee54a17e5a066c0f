"""A transport over a link: what `zmq_ipc` and `collective` share on the trainer's side."""

import asyncio
from dataclasses import replace

from parity.errors import TransferError
from parity.weights.config import WeightsConfig
from parity.weights.content.outgoing import DtypePolicy, Outgoing
from parity.weights.session import wire
from parity.weights.session.deadline import Deadline, in_thread
from parity.weights.session.sender import Link, Sender
from parity.weights.transfer import PublishReport, Switch, Transfer, Weights


class LinkTransfer(Transfer):
    """Publishes over a link; everything that blocks is done in another thread."""

    def __init__(self, link: Link, config: WeightsConfig) -> None:
        self._link = link
        self._config = config
        self._policy = DtypePolicy(config.dtype, config.dtype_rules)

    async def publish(self, weights: Weights, *, version: int, switch: Switch) -> PublishReport:
        """Make `version` live in all receivers, or in none."""
        sender = self._sender(weights, version, self._config)
        await _publish(sender, switch)
        return sender.report()

    async def prove(self, weights: Weights, *, version: int, switch: Switch) -> PublishReport:
        """The equality check at start-up: an update over weights that were made useless first.

        Without the overwriting a publication that does nothing would pass, because at the start
        the engine holds the trainer's weights already. What is served is read anew and compared
        by digest, aliases included. Only while nothing is generated. Raises TransferError; the
        engines' weights are useless then.
        """
        sender = self._sender(weights, version, replace(self._config, verify="digests"))
        await asyncio.to_thread(self._ask, {"kind": "overwrite"})
        await _publish(sender, switch)
        answers = await asyncio.to_thread(self._ask, {"kind": "prove"})
        expected = dict(sender.sent_digests)
        kept = [(alias, name) for alias, name in weights.aliases if name in expected]
        expected |= {alias: expected[name] for alias, name in kept}
        for who, answer in answers.items():
            served = wire.digests_of(answer) or {}
            wrong = sorted(name for name, digest in expected.items() if served.get(name) != digest)
            if wrong:
                raise TransferError(
                    f"{who} serves other values than the trainer holds after version {version} in "
                    f"{len(wrong)} of {len(expected)} tensors, first {wrong[:5]}."
                )
        return sender.report()

    async def close(self) -> None:
        """Give sockets, memory and files back."""
        await asyncio.to_thread(self._link.close)

    def _sender(self, weights: Weights, version: int, config: WeightsConfig) -> Sender:
        skip = config.skip
        outgoing = Outgoing(weights, version=version, skip=skip, policy=self._policy)
        return Sender(self._link, config, outgoing)

    def _ask(self, message: wire.Message) -> dict[str, wire.Message]:
        """Ask every receiver outside a publication."""
        phase = wire.text(message, "kind")
        deadline = Deadline(phase, self._config.timeout_s)
        self._link.connect(deadline)
        return self._link.answers(self._link.send(message, deadline), deadline).check()


async def _publish(sender: Sender, switch: Switch) -> None:
    """Stage, switch, commit; a cancelled publication is aborted before the cancelling goes on."""
    await in_thread(sender.stage, sender.cancelled)
    try:
        await switch(lambda: in_thread(sender.commit, sender.cancelled))
    except BaseException as error:
        reason = str(error) or type(error).__name__
        await in_thread(lambda: sender.abort(reason), sender.cancelled)
        raise
