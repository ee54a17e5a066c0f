"""What the trainer writes into a checkpoint folder, and reads back bit for bit.

    FOLDER/config.json, model.safetensors, ...   the weights, loadable by transformers as it is
    FOLDER/trainer/                              optimizer moments, step, random generators,
                                                 by torch.distributed.checkpoint

Several ranks write the weights into `trainer/` too, each its own part, and no Hugging Face
folder; either kind is read by any number of ranks.
Only tensors are stored in `trainer/`, under parameter names, and loading copies them into
the live ones. The folder becomes a checkpoint by `checkpoint.py`, not here.
"""

import logging
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.optim import AdamW
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from parity.errors import CheckpointError
from parity.models.config import ModelConfig
from parity.models.loading import load_model
from parity.models.parameters import named_weights
from parity.models.streaming import WeightStream, open_stream
from parity.training.forward import attention_name
from parity.training.optimizers import MOMENTS
from parity.training.parallel.ranks import Ranks, host_copy

logger = logging.getLogger(__name__)

TRAINER_DIR = "trainer"
WEIGHT = "weight."  # in front of a weight's name in trainer/
HOST_RANDOM, DEVICE_RANDOM = "random.host", "random.device"


def save(
    path: Path, *, model: PreTrainedModel, tensors: Mapping[str, Tensor], ranks: Ranks
) -> None:
    """Write weights and `tensors` into the folder `path`; all ranks together."""
    stored = dict(tensors)
    if ranks.size == 1:
        save_model(path, model)
    else:
        stored |= _sharded_weights(model)
    with _quiet(), _told(path):
        ranks.save(path / TRAINER_DIR, stored)


def stage(
    *, model: PreTrainedModel, tensors: Mapping[str, Tensor], ranks: Ranks
) -> Callable[[Path], None]:
    """Copy what `save` would write to the host, all ranks together; the result writes it, once.

    What is written is `save`'s, bit for bit.
    """
    if ranks.size == 1:
        weights = {n: host_copy(ranks.whole(tensor)) for n, tensor in named_weights(model)}
        staged = ranks.stage(tensors)
    else:
        weights = None
        staged = ranks.stage({**tensors, **_sharded_weights(model)})

    def write(path: Path) -> None:
        if weights is not None:
            save_model(path, model, weights)
        with _quiet(), _told(path):
            ranks.write(path / TRAINER_DIR, staged)

    return write


@contextmanager
def _told(path: Path) -> Generator[None]:
    """Turn a failure of any rank into one sentence."""
    try:
        yield
    except CheckpointException as error:  # a BaseException, which nobody else would catch
        causes = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes_of(error))
        raise CheckpointError(
            f"the trainer's state can't be written to {path.parent} ({causes}); older checkpoints "
            "are unchanged. Free disk space or set output.dir."
        ) from error


def causes_of(error: CheckpointException) -> list[BaseException]:
    """What went wrong, by rank."""
    return [wrapped[0] for wrapped in error.failures.values()]


def load(
    path: Path, *, model: PreTrainedModel, tensors: Mapping[str, Tensor], ranks: Ranks
) -> None:
    """Copy what `save` wrote into the weights of `model` and into `tensors`, in place.

    The numbers of ranks then and now are free. Raises CheckpointError where names or shapes
    differ.
    """
    folder = path / TRAINER_DIR
    try:
        shapes = _stored_shapes(folder)
        live, wanted = dict(named_weights(model)), dict(tensors)
        copied: dict[str, Tensor] = {}
        stream = None
        if any(name.startswith(WEIGHT) for name in shapes):
            wanted |= _sharded_weights(model)
        elif (stream := _stream(path, model, ranks)) is None:
            copied = dict(named_weights(_stored_model(path, model)))
            _check_names(path, "weights", {n: t.shape for n, t in copied.items()}, live)
        _check_names(path, "optimizer state", shapes, wanted)
        with _quiet():
            ranks.load(folder, wanted)
    except (OSError, RuntimeError, ValueError, CheckpointException) as error:
        raise CheckpointError(
            f"{folder} can't be read ({type(error).__name__}: {error}); take an older checkpoint."
        ) from error
    if stream is not None:
        stream.fill(model)
    with torch.no_grad():
        for name, tensor in copied.items():
            live[name].copy_(ranks.spread(tensor, like=live[name]))


def _stream(path: Path, model: PreTrainedModel, ranks: Ranks) -> WeightStream | None:
    """What reads the folder's weights into the parts of several ranks; None: read them whole."""
    if ranks.size == 1:
        return None
    stream = open_stream(path, model)
    if isinstance(stream, str):
        logger.warning("event=checkpoint_loaded_whole path=%s reason=%s", path, stream)
        return None
    return stream


def _stored_shapes(folder: Path) -> dict[str, torch.Size]:
    metadata = FileSystemReader(folder).read_metadata()
    return {
        name: entry.size
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def _sharded_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The live weights under names of their own beside the optimizer's."""
    return {f"{WEIGHT}{name}": tensor for name, tensor in named_weights(model)}


def save_model(
    path: Path, model: PreTrainedModel, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write a Hugging Face folder with config and safetensors, tied weights once.

    Args:
        weights: what is written instead of the live ones, by the names of `named_weights`.
    """
    path.mkdir(parents=True, exist_ok=True)
    with _quiet(), _written(path):
        model.save_pretrained(path, state_dict=None if weights is None else dict(weights))


def export(
    path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, ranks: Ranks
) -> None:
    """Write a Hugging Face folder from however many ranks; rank 0 writes and holds the whole."""
    if ranks.size == 1:
        save_model(path, model)
        with _written(path):
            tokenizer.save_pretrained(str(path))
        return
    tensors: dict[str, Tensor] = {}
    for name, tensor in named_weights(model):
        whole = ranks.whole(tensor.detach())
        if ranks.rank == 0:
            tensors[name] = whole.cpu()
    if ranks.rank == 0:
        path.mkdir(parents=True, exist_ok=True)
        with _quiet(), _written(path):
            model.save_pretrained(path, state_dict=tensors)
            tokenizer.save_pretrained(str(path))


def optimizer_tensors(model: PreTrainedModel, optimizer: AdamW) -> dict[str, Tensor]:
    """The live moments of every trained parameter, by name."""
    return {
        f"optimizer.{name}.{moment}": optimizer.state[parameter][moment]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for moment in MOMENTS
    }


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's generators: the host's, and the device's where it has its own."""
    states = {HOST_RANDOM: torch.get_rng_state()}
    if device.type != "cpu":
        states[DEVICE_RANDOM] = torch.get_device_module(device).get_rng_state(device)
    return states


def set_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Put back what `random_state` gave."""
    torch.set_rng_state(states[HOST_RANDOM])
    if DEVICE_RANDOM in states:
        torch.get_device_module(device).set_rng_state(states[DEVICE_RANDOM], device)


def _stored_model(path: Path, model: PreTrainedModel) -> PreTrainedModel:
    """The weights of the folder in a second model on the host, complete or CheckpointError."""
    config = ModelConfig(
        path=str(path),
        attention=attention_name(model),  # pyright: ignore[reportArgumentType]
        trust_remote_code=bool(model.config.to_dict().get("auto_map")),
    )
    return load_model(config, dtype="float32", device="cpu")


def _check_names(
    path: Path, what: str, stored: Mapping[str, torch.Size], live: Mapping[str, Tensor]
) -> None:
    missing = sorted(live.keys() - stored.keys())
    unknown = sorted(stored.keys() - live.keys())
    other = sorted(n for n in live.keys() & stored.keys() if live[n].shape != stored[n])
    if missing or unknown or other:
        raise CheckpointError(
            f"{path} doesn't fit this run: its {what} lack {missing[:3]} ({len(missing)}), bring"
            f" unknown {unknown[:3]} ({len(unknown)}), have other shapes in {other[:3]}"
            f" ({len(other)}); resume with the model that wrote it."
        )


@contextmanager
def _written(path: Path) -> Generator[None]:
    """Say in one sentence that the disk refuses what the libraries write, each by its own error."""
    try:
        yield
    except Exception as error:  # the tokenizers library raises nothing more special
        refused = isinstance(error, OSError | SafetensorError) or "os error" in str(error)
        if not refused:
            raise
        raise CheckpointError(
            f"the model can't be written to {path} ({error}); what was saved before is unchanged. "
            "Free disk space or set output.dir."
        ) from error


@contextmanager
def _quiet() -> Generator[None]:
    """No progress bars, and no word about saving from a single process, which is meant."""
    had_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    finally:
        if had_bars:
            transformers_logging.enable_progress_bar()
