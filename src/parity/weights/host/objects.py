"""Objects of the `disk` transport: tensors or deltas gathered into safetensors, and read back."""

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from parity.errors import TransferError
from parity.weights.content import delta
from parity.weights.host.library import Library, VersionFile

_OBJECT_BYTES = 256 * 2**20  # tensors are gathered into files of about this size


class ObjectWriter:
    """Gathers tensors into objects of bounded size."""

    def __init__(self, library: Library) -> None:
        self.where: dict[str, int] = {}
        self.size_bytes = 0
        self._library = library
        self._pending: dict[str, torch.Tensor] = {}
        self._pending_bytes = 0
        self._objects: list[str] = []

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take a contiguous tensor of the host."""
        size = tensor.numel() * tensor.element_size()
        if self._pending and self._pending_bytes + size > _OBJECT_BYTES:
            self._flush()
        self.where[name] = len(self._objects)
        storage = tensor.untyped_storage()
        if storage.nbytes() != size or any(
            storage.data_ptr() == other.untyped_storage().data_ptr()
            for other in self._pending.values()
        ):
            tensor = tensor.clone()  # safetensors refuses views that share memory
        self._pending[name] = tensor
        self._pending_bytes += size

    def finish(self) -> list[str]:
        """Write what is left; the digests of all objects."""
        if self._pending:
            self._flush()
        return self._objects

    def _flush(self) -> None:
        data = save(self._pending)
        self._objects.append(self._library.add_object(data))
        self.size_bytes += len(data)
        self._pending, self._pending_bytes = {}, 0


class ObjectReader:
    """Applies one version to tensors."""

    def __init__(self, library: Library, version: VersionFile) -> None:
        self.base = version.base
        self._version = version
        self._files = [library.object_path(digest) for digest in version.objects]

    def apply(self, name: str, tensor: torch.Tensor | None) -> torch.Tensor:
        """The tensor [n] of this version, from that of its base."""
        encoding, number = self._version.encoding, self._version.where.get(name)
        if number is None:
            if tensor is None:
                raise TransferError(f"version {self._version.version} has no tensor {name}.")
            return tensor
        try:
            with safe_open(self._files[number], framework="pt") as file:
                found = file.get_tensor(name)
        except (OSError, SafetensorError, IndexError) as error:
            raise TransferError(
                f"{name} of version {self._version.version} can't be read ({error})."
            ) from error
        if encoding == "full":
            return found.view(-1)
        if encoding not in ("xor", "overwrite") or tensor is None:
            raise TransferError(
                f"version {self._version.version} has the encoding {encoding!r} and needs version "
                f"{self._version.base}; known are full, xor and overwrite."
            )
        return delta.decode(found.numpy().tobytes(), tensor, encoding)
