"""One publication on the receiving side: what was promised, what came, where it goes.

Used by the engine between `begin_load` and `commit_load`. The destinations are staging
memory, so nothing here can touch the weights that are served.
"""

from collections.abc import Iterable, Mapping

import torch

from parity.errors import TransferError
from parity.weights.manifest import Manifest


class Publication:
    """The tensors of one manifest on their way into staging memory."""

    def __init__(
        self,
        manifest: Manifest,
        *,
        expected: Mapping[str, tuple[int, ...]],
        destinations: Mapping[str, torch.Tensor],
    ) -> None:
        """Check the manifest against the model.

        Raises TransferError where names or shapes don't fit, or an alias leads nowhere.
        """
        manifest.check(expected)
        sent = {entry.name for entry in manifest.entries}
        if len(sent) != len(manifest.entries):
            raise TransferError(f"version {manifest.version} lists a tensor twice; send each once.")
        self.manifest = manifest
        self._destinations = destinations
        self._shapes = {entry.name: entry.shape for entry in manifest.entries}
        self._targets = {name: [destinations[name]] for name in sent}
        self._taken: set[str] = set()
        self._filled: set[tuple[int, tuple[int, ...]]] = set()
        for alias, name in manifest.aliases:
            self._add_alias(alias, name, expected)
        aliased = {alias for alias, _ in manifest.aliases}
        self.unsent = sorted(expected.keys() - sent - aliased)  # left out on purpose

    def _add_alias(self, alias: str, name: str, expected: Mapping[str, tuple[int, ...]]) -> None:
        if name not in self._targets or alias not in expected or alias in self._shapes:
            raise TransferError(
                f"version {self.manifest.version} says that {alias} is the same as {name}; the "
                f"first must be a tensor of the model that isn't sent and the second one that is."
            )
        if expected[alias] != self._shapes[name]:
            raise TransferError(
                f"version {self.manifest.version} says that {alias} with shape {expected[alias]} "
                f"is the same as {name} with shape {self._shapes[name]}."
            )
        targets = self._targets[name]
        if all(_place(self._destinations[alias]) != _place(target) for target in targets):
            targets.append(self._destinations[alias])

    def keep(self, served: Mapping[str, torch.Tensor]) -> None:
        """Give what isn't published the value that is served, before anything is taken."""
        with torch.no_grad():
            for name in self.unsent:
                self._destinations[name].copy_(served[name])

    def take(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy tensors into staging memory, each into all places it belongs to.

        Raises TransferError for a name that wasn't announced or came before, another shape,
        and two different tensors for what the model ties together.
        """
        with torch.no_grad():
            for name, tensor in tensors:
                self._take_one(name, tensor)

    def _take_one(self, name: str, tensor: torch.Tensor) -> None:
        version = self.manifest.version
        if name not in self._shapes:
            raise TransferError(f"version {version} brought {name}, which it didn't announce.")
        if name in self._taken:
            raise TransferError(f"version {version} brought {name} twice; send each tensor once.")
        if tuple(tensor.shape) != self._shapes[name]:
            raise TransferError(
                f"version {version} announced {name} with shape {self._shapes[name]} and brought "
                f"shape {tuple(tensor.shape)}."
            )
        for destination in self._targets[name]:
            shaped = tensor.detach().reshape(destination.shape)
            place = _place(destination)
            if place not in self._filled:
                destination.copy_(shaped)
                self._filled.add(place)
            elif not torch.equal(destination, shaped.to(destination)):
                raise TransferError(
                    f"version {version} brought another value for {name} than for the tensor that "
                    f"it is tied to; the engine's model has one storage for both."
                )
        self._taken.add(name)

    def check_complete(self) -> None:
        """Refuse (TransferError) to go on while an announced tensor is missing."""
        missing = sorted(self._shapes.keys() - self._taken)
        if missing:
            raise TransferError(
                f"version {self.manifest.version} lacks {len(missing)} of {len(self._shapes)} "
                f"announced tensors, first {missing[:5]}; the old version stays."
            )


def _place(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)
