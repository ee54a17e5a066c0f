"""Reads a causal language model and its tokenizer, or says in one sentence why it can't.

Used by the trainer, by engines and by the command line; `paths.py` says what a path means, and
`streaming.py` reads weights into a model whose memory several ranks share.
Invariants: no weight is ever left at a random initial value in silence, and no tokenizer is
made up where the files of one are missing. `AutoModelForCausalLM` is used as it is: nearly
all of its import is torch's own, and importing the concrete class costs the same.
"""

import pickle
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
import transformers
from safetensors import SafetensorError
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from parity.errors import CheckpointError, ConfigError, UnsupportedError
from parity.models.config import ModelConfig
from parity.models.paths import Place, find, first_line, resolve_path
from parity.models.rendering import check_vocabulary, read_chat_template

__all__ = ["DTYPES", "load_model", "load_tokenizer", "resolve_path", "vocab_size"]

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "*.model", "*.tiktoken", "tekken.json")


def load_model(
    config: ModelConfig,
    *,
    dtype: str,
    device: torch.device | str,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> PreTrainedModel:
    """The model of `config`, complete, in evaluation mode, on `device`.

    Args:
        dtype: one of `DTYPES`.
        tokenizer: where given, its ids are checked against the vocabulary first.

    Raises ConfigError for a path that holds no causal language model, CheckpointError for
    weights that are damaged or don't fit, UnsupportedError for a missing optional package.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}.")
    place = find(config.path, key="model.path")
    model_config = read_config(place, config)
    if tokenizer is not None:
        check_vocabulary(tokenizer, vocab_size(model_config))
    with quiet(), sentences(place):
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            place.path,
            config=model_config,
            dtype=DTYPES[dtype],
            attn_implementation=config.attention,
            trust_remote_code=config.trust_remote_code,
            local_files_only=place.is_offline,
            output_loading_info=True,
        )
    model, info = cast("tuple[PreTrainedModel, Mapping[str, Collection[object]]]", loaded)
    check_complete(place, info)
    _check_tied(place, model)
    if torch.device(device).type == "cpu":
        _leave_files(model)
    torch.nn.Module.to(model, device)
    return model.eval()


def _leave_files(model: PreTrainedModel) -> None:
    """Copy every tensor out of the weight files, in which those of a CPU model lie otherwise.

    They are mapped there for this process alone, but a file that is written again in place (an
    update of the package, an export to the same folder) takes changed pages back: a trained model
    would silently be the one of the file.
    """
    copies: dict[tuple[object, ...], torch.Tensor] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if place not in copies:
            copies[place] = tensor.detach().clone()
        tensor.data = copies[place]  # what is tied stays so


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of `config`, with `config.chat_template` in place of its own if set.

    Raises ConfigError where there is none.
    """
    key = "model.path" if config.tokenizer is None else "model.tokenizer"
    place = find(config.tokenizer or config.path, key=key)
    wish = "set model.tokenizer to a folder or hub name that has one"
    folder = Path(place.path)
    if place.is_folder and not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise ConfigError(f"{key}={folder} has no tokenizer files; {wish}.")
    try:
        with quiet():
            tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
                place.path,
                trust_remote_code=config.trust_remote_code,
                local_files_only=place.is_offline,
            )
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        if place.is_offline and not place.is_folder:
            raise ConfigError(
                f"{key} is {place.path!r}: there is no such folder in {Path.cwd()}, the model hub"
                " can't be reached, and no copy of it is in the local cache; give a folder."
            ) from error
        raise ConfigError(
            f"{key}={place.path} has no tokenizer that can be read ({first_line(error)}); {wish}."
        ) from error
    # Where the vocabulary is missing, transformers makes a tokenizer of special tokens only.
    if not tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens):
        raise ConfigError(f"{key}={place.path} gives a tokenizer without a vocabulary; {wish}.")
    template = read_chat_template(config.chat_template)
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def vocab_size(config: PreTrainedConfig) -> int:
    """Number of ids that the model has an embedding for."""
    return int(config.get_text_config().vocab_size)


def read_config(place: Place, config: ModelConfig) -> PreTrainedConfig:
    """The model's own config, which must be that of a causal language model."""
    if place.is_folder and not (Path(place.path) / "config.json").is_file():
        raise ConfigError(f"model.path={place.path} has no config.json; give a model's folder.")
    try:
        found = transformers.AutoConfig.from_pretrained(
            place.path,
            trust_remote_code=config.trust_remote_code,
            local_files_only=place.is_offline,
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ConfigError(_why_no_config(place, error)) from error
    own_code = found.to_dict().get("auto_map") or {}
    is_causal = found.model_type in _causal_model_types() or (
        config.trust_remote_code and "AutoModelForCausalLM" in own_code
    )
    if not is_causal:
        raise ConfigError(
            f"model.path={place.path} is a {found.model_type!r} model, which isn't a causal"
            " language model; give one that generates text token by token."
        )
    return found


def _causal_model_types() -> Mapping[str, object]:
    return transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def _why_no_config(place: Place, error: Exception) -> str:
    """One sentence for a config that can't be read."""
    if "trust_remote_code" in str(error):
        return (
            f"model.path={place.path} brings its own Python code; read it, then set"
            " model.trust_remote_code=true to run it."
        )
    if place.is_offline and not place.is_folder:
        return (
            f"model.path is {place.path!r}: there is no such folder in {Path.cwd()}, the hub can't"
            " be reached, and the hub's cache on this disk doesn't have it."
        )
    return f"model.path={place.path} has no config that can be used: {first_line(error)}"


@contextmanager
def sentences(place: Place) -> Generator[None]:
    """Turn what reading weights may raise into one sentence of ours."""
    try:
        yield
    except ImportError as error:
        raise UnsupportedError(
            f"model.path={place.path} needs a package that can't be used ({first_line(error)});"
            " install it or set model.attention=sdpa."
        ) from error
    except (SafetensorError, pickle.UnpicklingError, EOFError) as error:
        raise CheckpointError(
            f"{place.path} has a damaged weight file ({first_line(error)}); copy it again."
        ) from error
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(
            f"the weights of {place.path} can't be loaded: {first_line(error)}"
        ) from error


def check_complete(place: Place, info: Mapping[str, Collection[object]]) -> None:
    """Refuse weights that leave a part of the model random, or a part of the file unused."""
    found = {kind: sorted(map(str, keys)) for kind, keys in info.items()}
    said = [
        f"{len(names)} {kind.replace('_', ' ')}, the first of them {', '.join(names[:3])}"
        for kind, names in sorted(found.items())
        if names
    ]
    if said:
        raise CheckpointError(
            f"the weights of {place.path} don't fit its config.json ({'; '.join(said)}); use files"
            " that belong together, because the rest would stay random."
        )


def _check_tied(place: Place, model: PreTrainedModel) -> None:
    """Refuse a head that its config calls tied but whose weights are others.

    Such a model would be trained as two weights and served by other engines as one.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    is_said = bool(model.config.get_text_config().to_dict().get("tie_word_embeddings"))
    if is_said and isinstance(head, torch.nn.Linear) and head.weight is not embedding.weight:
        raise CheckpointError(
            f"{place.path} has tie_word_embeddings=true in its config.json, but a head with other"
            " weights than the embedding; set it to false there, or remove the head's weights."
        )


@contextmanager
def quiet() -> Generator[None]:
    """No progress bars and reports of transformers; what matters in them is raised instead."""
    level = transformers_logging.get_verbosity()
    had_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if had_bars:
            transformers_logging.enable_progress_bar()
