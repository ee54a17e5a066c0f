"""All workflow files of a repository: rendered, written, and compared with what is committed.

Used by `parity ci workflow`. Invariant: a file that we generated is never silently older than
`ci.toml`, and a file that somebody wrote by hand is never overwritten.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from parity.ci.config import Config
from parity.ci.run.settings import RunSettings
from parity.ci.workflow.document import HEADER, Document, dump
from parity.ci.workflow.jobs import Context, image
from parity.ci.workflow.lanes import FOLDER, lane_files, own_place
from parity.ci.workflow.settings import read_dependencies, read_settings
from parity.errors import ConfigError

IGNORE = "zizmor: ignore"


def render(config: Config) -> dict[str, str]:
    """The text of every workflow file by path; raises ConfigError for what can't be safe."""
    leases = RunSettings.of(config.section("run")).lease_dir
    context = Context(config, read_settings(config), read_dependencies(config), str(leases))
    _check_expressions(config)
    files: dict[str, Document] = {
        path: document
        for backend in config.backends
        for path, document in lane_files(context, backend).items()
    }
    comments = _comments(context)
    return {path: dump(document, comments) for path, document in files.items()}


def warnings(config: Config) -> list[str]:
    """What weakens the gate and is allowed all the same."""
    settings = read_settings(config)
    own = [suite for suite in config.suites.values() if suite.is_self_hosted]
    found: list[str] = []
    if own and settings.repository is None:
        found.append(
            "workflow.repository isn't set: the gate then comes from the pull request's own copy,"
            " and only the service's approval of outside contributors stands before our machines."
        )
    slots = {slot.suite for slot in settings.slots}
    found.extend(
        f"suite {suite.name} has no [[workflow.slots]]: its container sees all devices of the"
        " host, so no other runner may share it."
        for suite in own
        if suite.devices and suite.name not in slots
    )
    return found


def stale(config: Config) -> list[str]:
    """One sentence for each file that isn't as `ci.toml` says; none where all are current."""
    files = render(config)
    found: list[str] = []
    for path, text in files.items():
        place = config.root / path
        if not place.is_file():
            found.append(f"{path} is missing")
        elif place.read_text(encoding="utf-8") != text:
            found.append(f"{path} is stale")
    found.extend(f"{path} belongs to no lane any more" for path in _generated(config, files))
    return found


def write(config: Config) -> list[str]:
    """Write what isn't current and remove what no lane has; returns what was done."""
    files = render(config)
    done: list[str] = []
    for path, text in files.items():
        place = config.root / path
        before = place.read_text(encoding="utf-8") if place.is_file() else None
        if before == text:
            continue
        if before is not None and not before.startswith(HEADER):
            raise ConfigError(
                f"{path} was written by hand and would be lost; move it away, or choose another"
                " workflow.prefix in ci.toml."
            )
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        done.append(f"{path} written")
    for path in _generated(config, files):
        (config.root / path).unlink()
        done.append(f"{path} removed")
    return done


def _comments(context: Context) -> dict[str, str]:
    """The version of each pinned action, and why three findings of zizmor don't hold here."""
    found = {action.uses: action.version for action in context.settings.actions.values()}
    for suite in context.config.suites.values():
        if suite.image is not None:
            found[image(suite, "inputs")] = (
                f"{IGNORE}[unpinned-images] a checked tag, chosen per run"
            )
    for backend in context.config.backends:
        place = own_place(context, backend)
        is_local = place.startswith("./")
        audit = "self-repository" if is_local else "unpinned-uses"
        why = "older servers know only ./" if is_local else "the gate is the default branch's own"
        found[place] = f"{IGNORE}[{audit}] {why}"
    return found


def _generated(config: Config, files: dict[str, str]) -> list[str]:
    """Files of ours that are no longer rendered."""
    places = sorted(Path(config.root, FOLDER).glob("*.yml"))
    return [
        path
        for place in places
        if (path := place.relative_to(config.root).as_posix()) not in files
        and place.read_text(encoding="utf-8").startswith(HEADER)
    ]


def _check_expressions(config: Config) -> None:
    """Refuse an expression of the service in ci.toml: it would paste its value into a script."""
    texts = [
        (f"suites.{suite.name}", text)
        for suite in config.suites.values()
        for text in (*suite.runner, suite.image or "")
    ]
    for section in ("workflow", "dependencies", "images"):
        texts += [(section, text) for text in _texts(config.section(section).values)]
    for place, text in texts:
        if "${{" in text:
            raise ConfigError(
                f"{place} in ci.toml has {text[:80]!r}; an expression isn't allowed there. A script"
                " finds what it needs in the variables of its job."
            )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in cast("Mapping[str, object]", value).values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _texts(item)
