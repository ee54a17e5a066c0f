"""The sections `[workflow]`, `[images]` and `[dependencies.NAME]` of `ci.toml`.

Read by the renderer and by the commands that the rendered jobs call. Invariant: whatever ends in
a workflow file was checked here: names, paths and options are plain, and no option opens the
container to its host.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from parity.ci.config import Config
from parity.ci.toml import Table, named
from parity.ci.workflow.actions import ACTIONS, Action, read_action
from parity.ci.workflow.containers import VENDORS, forbidden_mount, forbidden_option

PREFIX = re.compile(r"[a-z][a-z0-9-]*")
RUNNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
BODY_KEY = re.compile(r"[a-z][a-z0-9-]*")
MOUNT = re.compile(r"/[A-Za-z0-9_./-]+:/[A-Za-z0-9_./-]+(:ro)?")
DEVICE = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Lane:
    """[workflow.lanes.BACKEND]: how jobs of one backend are set up."""

    install: tuple[str, ...]  # shell lines before the tests
    vendor: str  # whose devices a container gets, a key of VENDORS
    options: tuple[str, ...]  # further options of the container
    mounts: tuple[str, ...]  # host:container[:ro]
    shared_memory_gib: int


@dataclass(frozen=True, slots=True)
class Slot:
    """[[workflow.slots]]: one runner of a host that several share, and the devices it owns."""

    suite: str
    runner: tuple[str, ...]  # labels that only this runner has
    devices: tuple[str, ...]  # as the vendor's container runtime names them


@dataclass(frozen=True, slots=True)
class Settings:
    """[workflow]: what every lane shares."""

    prefix: str  # begins the names of files and concurrency groups
    hosted_runner: str  # label of the service's own machine, for planning and approving
    python: str  # version on that machine
    install: tuple[str, ...]  # shell lines there after which `parity ci` works
    environment: str  # protected environment whose reviewers approve a commit
    repository: str | None  # owner/name; with it the gate is taken from the default branch
    lock: str | None  # lock file of references, relative to the root
    results_dir: str
    artifact_days: int
    secrets: Mapping[str, str]  # variable of the run -> secret; scheduled runs only
    actions: Mapping[str, Action]
    lanes: Mapping[str, Lane]  # by backend
    slots: tuple[Slot, ...]
    image_key: str  # line of a pull request's body that names an image tag


@dataclass(frozen=True, slots=True)
class Dependency:
    """[dependencies.NAME]: a checkout inside the image that a run may move to another commit."""

    name: str
    url: str  # where commits come from
    path: str  # absolute path of the checkout in the image
    body_key: str  # line of a pull request's body that names a reference
    default: str | None  # reference where nothing else names one; None: the image's own commit
    patches: tuple[str, ...]  # patch files of the repository, applied in this order
    install: tuple[str, ...]  # shell lines in the checkout afterwards


def read_settings(config: Config) -> Settings:
    """The workflow sections of a configuration; raises ConfigError with file and line."""
    table = config.section("workflow")
    images = config.section("images")
    defaults = {name: read_lane(Table.parse(""), config) for name in config.backends}
    found = Settings(
        prefix=_matching(table, "prefix", PREFIX, "ci"),
        hosted_runner=_matching(table, "hosted_runner", RUNNER, "ubuntu-24.04"),
        python=_matching(table, "python", re.compile(r"3\.\d+"), "3.11"),
        install=table.texts("install"),
        environment=_matching(table, "environment", RUNNER, "hardware-ci"),
        repository=_optional(table, "repository", REPOSITORY),
        lock=_inside(table, "lock") if table.has("lock") else None,
        results_dir=_inside(table, "results_dir", "ci-results"),
        artifact_days=table.integer("artifact_days", 14, least=1),
        secrets=_secrets(table.table("secrets")),
        actions=_actions(table.table("actions")),
        lanes=defaults
        | {name: read_lane(lane, config, name) for name, lane in named(table.tables("lanes"))},
        slots=tuple(_slot(each, config) for each in table.array("slots")),
        image_key=_matching(images, "body_key", BODY_KEY, "ci-image-tag"),
    )
    table.done()
    images.done()
    return found


def read_lane(table: Table, config: Config, backend: str | None = None) -> Lane:
    """One lane; an empty table gives the defaults of a lane without devices."""
    if backend is not None and backend not in config.backends:
        known = ", ".join(config.backends)
        raise table.error(None, f"is no backend; [backends] has {known}.")
    options = table.texts("options", ())
    for option in options:
        if problem := forbidden_option(option):
            raise table.error("options", f"has {option!r}: {problem}.")
    mounts = table.texts("mounts", ())
    for mount in mounts:
        if not MOUNT.fullmatch(mount) or ".." in mount:
            raise table.error("mounts", f"has {mount!r}; write /host/path:/container/path[:ro].")
        if problem := forbidden_mount(mount.partition(":")[0]):
            raise table.error("mounts", f"has {mount!r}: {problem}.")
    found = Lane(
        install=table.texts("install", ()),
        vendor=table.word("vendor", list(VENDORS), "none"),
        options=options,
        mounts=mounts,
        shared_memory_gib=table.integer("shared_memory_gib", 32, least=1),
    )
    table.done()
    return found


def read_dependencies(config: Config) -> dict[str, Dependency]:
    """The declared dependencies by name."""
    section = config.section("dependencies")
    found: dict[str, Dependency] = {}
    for name in section.names():
        table = section.table(name)
        if not BODY_KEY.fullmatch(name):
            raise table.error(None, "has a name that isn't lower case letters, digits and '-'.")
        found[name] = _dependency(name, table)
    return found


def _dependency(name: str, table: Table) -> Dependency:
    path = table.text("path")
    if not PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise table.error("path", f"is {path!r}; an absolute path inside the image is needed.")
    found = Dependency(
        name=name,
        url=_matching(table, "url", re.compile(r"https://[A-Za-z0-9_./-]+|/[A-Za-z0-9_./-]+")),
        path=path,
        body_key=_matching(table, "body_key", BODY_KEY, f"ci-{name}"),
        default=table.optional_text("default"),
        patches=table.texts("patches", ()),
        install=table.texts("install", ()),
    )
    table.done()
    return found


def _slot(table: Table, config: Config) -> Slot:
    suite = table.word("suite", list(config.suites))
    devices = table.texts("devices")
    for device in devices:
        if not DEVICE.fullmatch(device):
            raise table.error("devices", f"has {device!r}; letters and digits only.")
    if len(devices) != config.suites[suite].devices:
        raise table.error(
            "devices",
            f"has {len(devices)} devices, and suite {suite} uses {config.suites[suite].devices};"
            " list exactly those the runner owns.",
        )
    found = Slot(suite=suite, runner=table.texts("runner"), devices=devices)
    table.done()
    return found


def _secrets(table: Table) -> dict[str, str]:
    found = {name: table.text(name) for name in table.names()}
    for variable, secret in found.items():
        for word in (variable, secret):
            if not VARIABLE.fullmatch(word):
                raise table.error(variable, f"has {word!r}; capital letters, digits and '_' only.")
    return found


def _actions(table: Table) -> dict[str, Action]:
    table_actions = {
        name: read_action(table, name) if table.has(name) else default
        for name, default in ACTIONS.items()
    }
    table.done()
    return table_actions


def _matching(table: Table, key: str, pattern: re.Pattern[str], default: str | None = None) -> str:
    value = table.text(key, default)
    if not pattern.fullmatch(value):
        raise table.error(key, f"is {value!r}; it must match {pattern.pattern}.")
    return value


def _optional(table: Table, key: str, pattern: re.Pattern[str]) -> str | None:
    return _matching(table, key, pattern) if table.has(key) else None


def _inside(table: Table, key: str, default: str | None = None) -> str:
    value = _matching(table, key, re.compile(r"[A-Za-z0-9_./-]+"), default)
    if value.startswith("/") or ".." in value.split("/"):
        raise table.error(key, f"is {value!r}; a path inside the repository is needed.")
    return value
