"""Reads `ci.toml` into a `Config` and refuses whatever dangles.

Used by every `parity ci` command. Invariant: what it returns is closed: each name that one section
mentions is defined in another, and each key of the file was understood by somebody.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from parity.ci.config import (
    ALL,
    FILE,
    OWNED,
    Backend,
    Cadence,
    Config,
    EventRule,
    Implicit,
    PathRule,
    Project,
    Scope,
    Suite,
    WorkflowLabel,
)
from parity.ci.cron import check_cron
from parity.ci.globs import expands
from parity.ci.toml import Table, named
from parity.registry import known

COMMAND = ("{python}", "{file}")
LABEL_PREFIX = "run-ci-"
SCHEMA = 1
MOST_SHARDS = 256  # jobs of one matrix
MOST_SECONDS = 7 * 24 * 3600
MOST_MINUTES = 7 * 24 * 60
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]*")
BACKEND = re.compile(r"(?!ci)[a-z][a-z0-9_]*")


def load_config(root: Path) -> Config:
    """The configuration of the repository at `root`; raises ConfigError with file and line."""
    path = Path(root).resolve() / FILE
    return read_config(Table.read(path), path)


def read_config(file: Table, path: Path) -> Config:
    """The configuration in an opened ci.toml; `path` is where the file lies."""
    schema = file.integer("schema", least=1)
    if schema != SCHEMA:
        raise file.error("schema", f"is {schema}; this Parity reads schema {SCHEMA}.")
    labels = _labels(file)
    scopes = {name: _scope(name, table, labels) for name, table in _all(file, "scopes")}
    cadences = {name: _cadence(name, table, scopes) for name, table in _all(file, "cadences")}
    _check_crons(file, cadences)
    backends = {name: _backend(name, table) for name, table in _all(file, "backends")}
    suites = {name: _suite(name, table, backends, cadences) for name, table in _all(file, "suites")}
    _check_needs(file, suites)
    _check_suite_names(file, suites)
    config = Config(
        path=path,
        project=_project(file.table("project")),
        implicit=tuple(_implicit(table, suites, labels) for table in file.array("implicit")),
        backends=backends,
        suites=suites,
        labels=labels,
        label_prefix=_plain(file, "label_prefix", LABEL_PREFIX),
        workflow_labels={
            name: _workflow_label(name, table, scopes, cadences)
            for name, table in named(file.tables("workflow_labels"))
        },
        cadences=cadences,
        scopes=scopes,
        events={
            name: _event(name, table, scopes, cadences) for name, table in _all(file, "events")
        },
        paths=tuple(_path_rule(table, suites) for table in file.array("paths")),
        sections={name: file.table(name) for name in OWNED},
    )
    _check_labels(file, config)
    file.done()
    return config


def _all(file: Table, section: str) -> list[tuple[str, Table]]:
    found = list(named(file.tables(section)))
    if not found:
        raise file.error(section, f"is missing; at least one [{section}.NAME] is needed.")
    return found


def _project(table: Table) -> Project:
    issues = table.text("issues", Project.issues)
    try:
        re.compile(issues)
    except re.error as error:
        raise table.error("issues", f"isn't a regular expression ({error}).") from error
    roots = table.texts("roots")
    if not roots:
        raise table.error("roots", "is empty; name at least one folder with tests.")
    found = Project(
        roots=tuple(_folder(table, "roots", root) for root in roots),
        patterns=table.texts("patterns", Project.patterns),
        exclude=table.texts("exclude", ()),
        cpu_only=tuple(_folder(table, "cpu_only", each) for each in table.texts("cpu_only", ())),
        issues=issues,
        max_disabled_days=table.optional_integer("max_disabled_days", least=1),
        default_branch=_plain(table, "default_branch", Project.default_branch),
    )
    table.done()
    return found


def _plain(table: Table, key: str, default: str) -> str:
    """A text that can stand in quotes in an expression of a workflow."""
    value = table.text(key, default)
    if not PLAIN.fullmatch(value):
        raise table.error(key, f"is {value!r}; it must match {PLAIN.pattern}.")
    return value


def _folder(table: Table, key: str, folder: str) -> str:
    parts = folder.strip("/").split("/")
    if folder.startswith("/") or ".." in parts:
        raise table.error(key, f"names {folder!r}; a folder inside the repository is needed.")
    return "/".join(part for part in parts if part != ".") or "."


def _implicit(table: Table, suites: Mapping[str, Suite], labels: Mapping[str, str]) -> Implicit:
    found = Implicit(
        folder=_folder(table, "folder", table.text("folder")),
        suite=table.word("suite", list(suites)),
        est_time_s=table.number("est_time", least=0.001, most=MOST_SECONDS),
        labels=table.words("labels", list(labels), ()),
    )
    if suites[found.suite].devices:
        raise table.error(
            "suite",
            f"is {found.suite!r}, which takes devices; those tests must register themselves.",
        )
    table.done()
    return found


def _backend(name: str, table: Table) -> Backend:
    if not BACKEND.fullmatch(name):
        raise table.error(
            None,
            f"is no name for register_{name}_ci; use small letters, digits and '_', not beginning"
            " with 'ci'.",
        )
    is_accelerator = table.boolean("accelerator", default=True)
    command = table.texts("command", COMMAND)
    if "{file}" not in command:
        raise table.error("command", "has no {file}; that word stands for the test file.")
    found = Backend(
        name=name,
        description=table.text("description"),
        is_accelerator=is_accelerator,
        needs_labels=table.boolean("needs_labels", default=is_accelerator),
        command=command,
        env=table.variables("env"),
        platform=table.text("platform", name),
        variant=table.optional_text("variant"),
        forbidden_branches=table.texts("forbidden_branches", ()),
    )
    table.done()
    return found


def _suite(
    name: str, table: Table, backends: Mapping[str, Backend], cadences: Mapping[str, Cadence]
) -> Suite:
    backend = table.word("backend", list(backends))
    is_accelerator = backends[backend].is_accelerator
    devices = table.integer("devices", None if is_accelerator else 0)
    if bool(devices) != is_accelerator:
        raise table.error(
            "devices",
            f"is {devices}, and {backend} {'is' if is_accelerator else 'is not'} an accelerator;"
            f" it must be {'>= 1' if is_accelerator else '0'}.",
        )
    runner = table.texts("runner")
    if not runner:
        raise table.error("runner", "is empty; name the labels of the machine.")
    found = Suite(
        name=name,
        description=table.text("description"),
        backend=backend,
        devices=devices,
        runner=runner,
        is_self_hosted=table.boolean("self_hosted", default=is_accelerator),
        image=table.optional_text("image"),
        shards=table.integer("shards", 1, least=1, most=MOST_SHARDS),
        max_parallel=table.optional_integer("max_parallel", least=1),
        timeout_s=table.number("timeout_s", 1800.0, least=1.0, most=MOST_SECONDS),
        job_timeout_minutes=table.integer("job_timeout_minutes", 60, least=1, most=MOST_MINUTES),
        cadences=table.words("cadences", list(cadences), list(cadences)),
        needs=table.texts("needs", ()),
        min_free_memory_gib=table.optional_number("min_free_memory_gib"),
        env=table.variables("env"),
    )
    table.done()
    return found


def _check_suite_names(file: Table, suites: Collection[str]) -> None:
    """Refuse names that would be one name as a job of a workflow or as a folder."""
    seen: dict[str, str] = {}
    for name in suites:
        other = seen.setdefault(re.sub(r"[^a-z0-9_]", "-", name.lower()), name)
        if other != name:
            table = file.table("suites").table(name)
            raise table.error(None, f"and {other!r} are too much alike; rename one of them.")


def _check_needs(file: Table, suites: Mapping[str, Suite]) -> None:
    """Refuse a need that doesn't exist or that, in the end, waits for itself."""
    outer = file.table("suites")
    for name, suite in suites.items():
        waiting = list(suite.needs)
        seen: set[str] = set()
        while waiting:
            need = waiting.pop()
            if need not in suites:
                raise outer.table(name).error("needs", f"names {need!r}; {known(need, suites)}")
            if need == name:
                problem = "leads back to the suite itself; it would never start."
                raise outer.table(name).error("needs", problem)
            if need not in seen:
                seen.add(need)
                waiting.extend(each for each in suites[need].needs if each not in seen)


def _labels(file: Table) -> dict[str, str]:
    table = file.table("labels")
    labels: dict[str, str] = {}
    for name in table.names():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise table.error(name, "must be made of letters, digits, '-', '_', '.'.")
        labels[name] = table.text(name)
    return labels


def _check_labels(file: Table, config: Config) -> None:
    """Refuse a workflow label that could also mean a test label."""
    for name in config.workflow_labels:
        key = name.removeprefix(config.label_prefix)
        if name.startswith(config.label_prefix) and key in config.labels:
            raise file.table("workflow_labels").error(
                name, f"is also the label {key!r} of [labels]; rename one of them."
            )


def _workflow_label(
    name: str, table: Table, scopes: Collection[str], cadences: Collection[str]
) -> WorkflowLabel:
    found = WorkflowLabel(
        name=name,
        meaning=table.text("meaning"),
        scope=_optional_word(table, "scope", scopes),
        cadence=_optional_word(table, "cadence", cadences),
        fail_fast=table.boolean("fail_fast") if table.has("fail_fast") else None,
        is_one_shot=table.boolean("one_shot", default=False),
    )
    table.done()
    return found


def _optional_word(table: Table, key: str, allowed: Collection[str]) -> str | None:
    return table.word(key, list(allowed)) if table.has(key) else None


def _cadence(name: str, table: Table, scopes: Collection[str]) -> Cadence:
    cron = table.texts("cron", ())
    for line in cron:
        if problem := check_cron(line):
            raise table.error("cron", f"has {line!r}: {problem}.")
    found = Cadence(
        name=name,
        cron=cron,
        scope=_optional_word(table, "scope", scopes),
        admits_nightly=table.boolean("admits_nightly", default=False),
        fail_fast=table.boolean("fail_fast", default=True),
        writes_history=table.boolean("writes_history", default=False),
    )
    table.done()
    return found


def _check_crons(file: Table, cadences: Mapping[str, Cadence]) -> None:
    """Refuse a cron line that would mean two cadences."""
    owner: dict[str, str] = {}
    for cadence in cadences.values():
        for line in cadence.cron:
            if line in owner:
                raise (
                    file.table("cadences")
                    .table(cadence.name)
                    .error("cron", f"has {line!r}, which already means {owner[line]}.")
                )
            owner[line] = cadence.name


def _scope(name: str, table: Table, labels: Mapping[str, str]) -> Scope:
    allowed = list(labels)
    found = Scope(
        name=name,
        rank=table.integer("rank", 0),
        labels=table.words("labels", [ALL, *allowed], ()),
        minus=table.words("minus", allowed, ()),
        veto=table.words("veto", allowed, ()),
        is_broad=table.boolean("broad", default=False),
    )
    table.done()
    return found


def _event(
    name: str, table: Table, scopes: Collection[str], cadences: Collection[str]
) -> EventRule:
    found = EventRule(
        name=name,
        cadence=_optional_word(table, "cadence", cadences),
        scope=table.word("scope", list(scopes)),
        prunes=table.boolean("prune", default=False),
        writes_history=table.boolean("writes_history", default=False),
    )
    table.done()
    return found


def _path_rule(table: Table, suites: Mapping[str, Suite]) -> PathRule:
    wanted = table.texts("suites")
    chosen: list[str] = []
    for pattern in wanted:
        matching = [suite for suite in suites if expands(pattern, suite)]
        if not matching:
            raise table.error("suites", f"names {pattern!r}; {known(pattern, suites)}")
        chosen.extend(suite for suite in matching if suite not in chosen)
    globs = table.texts("globs")
    if not globs:
        raise table.error("globs", "is empty; name at least one pattern of paths.")
    found = PathRule(globs=globs, suites=tuple(chosen), why=table.text("why"))
    table.done()
    return found
