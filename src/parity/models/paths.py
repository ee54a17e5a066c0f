"""What a model path means: a folder, `parity://NAME` for a model that ships, or a hub name.

Used by `loading.py`, and by checks of a run file before anything heavy starts: neither torch
nor transformers is imported here. Invariants: a path that looks local never asks a hub; a
hub that can't be reached costs one attempt with a deadline.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from parity import recipes
from parity.errors import ConfigError
from parity.registry import known

SHIPPED = "parity://"
HUB_TIMEOUT_S = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where `from_pretrained` shall look."""

    path: str  # folder or hub name
    is_folder: bool
    is_offline: bool  # True: only what is on this disk


def resolve_path(path: str, *, key: str = "model.path") -> Path | str:
    """The folder that `path` means, or the hub name that it is; asks no hub.

    Args:
        key: the config key that errors name.

    Raises ConfigError where `path` looks local and there is no such folder, and where Parity
    ships no such model.
    """
    if path.startswith(SHIPPED):
        return _shipped(path.removeprefix(SHIPPED), key)
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ConfigError(f"{key} is {path!r}, which is a file; give the model's folder.")
    if _looks_local(path):
        raise ConfigError(f"{key} is {path!r}, but there is no such folder (in {Path.cwd()}).")
    return path


def find(path: str | None, *, key: str) -> Place:
    """Where to read `path` from; a hub is asked once whether it has it.

    Raises ConfigError as `resolve_path` does, where `path` is None, and where the hub
    answers that it has no such model.
    """
    if path is None:
        raise ConfigError(f"{key} is not set; give a folder, a hub name or {SHIPPED}NAME.")
    found = resolve_path(path, key=key)
    if isinstance(found, Path):
        return Place(str(found), is_folder=True, is_offline=True)
    return Place(found, is_folder=False, is_offline=not _hub_has(found, key))


def shipped_names() -> list[str]:
    """The models that ship with Parity, sorted."""
    return sorted(file.parent.name for file in _shipped_dir().glob("*/config.json"))


def _shipped_dir() -> Path:
    return Path(recipes.__file__).parent / "models"


def _shipped(name: str, key: str) -> Path:
    """The folder of a model inside the package."""
    names = shipped_names()
    if name not in names:
        ships = known(name, names) if names else "it ships none: give a folder or a hub name."
        raise ConfigError(f"{key} is '{SHIPPED}{name}', which doesn't ship with Parity; {ships}")
    return _shipped_dir() / name


def _looks_local(path: str) -> bool:
    """Whether a path that doesn't exist was meant as a folder, not as `owner/name`."""
    parts = path.replace("\\", "/").split("/")
    return path[0] in "./~\\" or len(parts) > 2 or (len(parts) == 2 and Path(parts[0]).is_dir())


def _hub_has(name: str, key: str) -> bool:
    """True where the hub has a model `name`, False where the hub can't be reached.

    Without this, each `from_pretrained` tries again for half a minute before it says so.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - needed for hub names only
    from huggingface_hub.errors import (  # noqa: PLC0415
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    # The HTTP library's root exception, whichever library the hub's client uses.
    transport_errors = cast("tuple[type[Exception], ...]", HfHubHTTPError.__bases__)
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except HFValidationError as error:
        raise ConfigError(f"{key} is {name!r}: no such folder, and not a hub name.") from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"{key} is {name!r}: there is no such folder in {Path.cwd()}, and the hub has no such"
            " model or it is private (then run `hf auth login`)."
        ) from error
    except transport_errors as error:
        logger.warning("hub_unreachable name=%s reason=%s", name, first_line(error))
        return False
    return True


def first_line(error: Exception) -> str:
    """What an error says, on one line of bearable length."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
