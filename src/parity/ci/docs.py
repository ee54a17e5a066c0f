"""The tables of a documentation page that come from ci.toml, between two marks.

Used by `parity ci docs`. A page holds `<!-- ci.toml: suites -->` and `<!-- ci.toml: end -->`, and
what lies between is written by us; everything else of the page is left alone.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from parity.ci.config import ALL, Config
from parity.errors import ConfigError
from parity.registry import known

BLOCK = re.compile(r"(<!-- ci\.toml: (?P<kind>[\w-]+) -->\n).*?(<!-- ci\.toml: end -->)", re.DOTALL)
OPENING = re.compile(r"<!-- ci\.toml: (?!end )")


def with_tables(page: str, config: Config, *, name: str) -> str:
    """The page with current tables; `name` is the page in errors."""
    found = list(BLOCK.finditer(page))
    if not found or len(found) != len(OPENING.findall(page)):
        raise ConfigError(
            f"{name} has {len(OPENING.findall(page))} marks and {len(found)} blocks of tables; a"
            f" block begins with <!-- ci.toml: KIND --> (KIND: {', '.join(TABLES)}) on a line of"
            " its own and ends with <!-- ci.toml: end -->."
        )

    def replaced(block: re.Match[str]) -> str:
        kind = block["kind"]
        if kind not in TABLES:
            raise ConfigError(f"{name} asks for the table {kind!r}; {known(kind, TABLES)}")
        return f"{block[1]}\n{TABLES[kind](config)}\n{block[3]}"

    return BLOCK.sub(replaced, page)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _suites(config: Config) -> str:
    rows = [
        [
            f"`{suite.name}`",
            suite.description,
            suite.backend,
            str(suite.devices),
            ", ".join(f"`{label}`" for label in suite.runner),
            f"`{suite.image}`" if suite.image else "",
            str(suite.shards),
            f"{suite.timeout_s:g}",
            ", ".join(suite.cadences),
            ", ".join(f"`{need}`" for need in suite.needs),
        ]
        for suite in config.suites.values()
    ]
    head = "suite|what|backend|devices|runner|image|shards|timeout of a file (s)|cadences|needs"
    return _table(head.split("|"), rows)


def _labels(config: Config) -> str:
    rows = [[f"`{config.label_prefix}{key}`", text] for key, text in config.labels.items()]
    rows += [[f"`{each.name}`", each.meaning] for each in config.workflow_labels.values()]
    return _table(["label of a pull request", "meaning"], rows)


def _cadences(config: Config) -> str:
    rows = [
        [
            each.name,
            ", ".join(f"`{line}`" for line in each.cron),
            each.scope or "the event's",
            "yes" if each.admits_nightly else "no",
            "yes" if each.fail_fast else "no",
            "yes" if each.writes_history else "no",
        ]
        for each in config.cadences.values()
    ]
    head = ["cadence", "when (UTC)", "scope", "nightly tests", "stops at a failure", "history"]
    return _table(head, rows)


def _scopes(config: Config) -> str:
    rows: list[list[str]] = []
    for scope in config.scopes.values():
        chosen = "all" if ALL in scope.labels else ", ".join(scope.labels) or "none"
        rows.append([scope.name, chosen, ", ".join(scope.minus), ", ".join(scope.veto)])
    return _table(["scope", "labels", "without", "vetoed"], rows)


def _events(config: Config) -> str:
    rows = [
        [
            each.name,
            each.cadence or "from the cron line, or said explicitly",
            each.scope,
            "yes" if each.prunes else "no",
        ]
        for each in config.events.values()
    ]
    return _table(["event", "cadence", "scope", "pruned by changed paths"], rows)


TABLES: Mapping[str, Callable[[Config], str]] = {
    "suites": _suites,
    "labels": _labels,
    "cadences": _cadences,
    "scopes": _scopes,
    "events": _events,
}
