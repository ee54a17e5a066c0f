"""Writes proposed estimates into the test files: the one number, and nothing else.

Used by `parity ci audit-times --write`.
"""

import ast
from collections.abc import Sequence
from pathlib import Path

from parity.ci.partition.estimates import Proposal
from parity.errors import DataError


def rewrite(root: Path, proposals: Sequence[Proposal]) -> list[str]:
    """Replace the literals; the paths that changed. Raises DataError where one isn't there."""
    by_path: dict[str, list[Proposal]] = {}
    for proposal in proposals:
        if not proposal.registration.is_implicit:
            by_path.setdefault(proposal.registration.path, []).append(proposal)
    for path, own in sorted(by_path.items()):
        place = root / path
        place.write_bytes(_rewritten(place.read_bytes(), path, own))
    return sorted(by_path)


def _rewritten(data: bytes, path: str, proposals: Sequence[Proposal]) -> bytes:
    lines = data.split(b"\n")
    tree = ast.parse(data)
    spots = [(_spot(tree, path, proposal), proposal) for proposal in proposals]
    for node, proposal in sorted(spots, key=lambda each: -each[0].col_offset):
        line = lines[node.lineno - 1]
        bom = 3 if node.lineno == 1 and data.startswith(b"\xef\xbb\xbf") else 0
        start, end = node.col_offset + bom, (node.end_col_offset or 0) + bom
        lines[node.lineno - 1] = line[:start] + f"{proposal.est_time_s:g}".encode() + line[end:]
    return b"\n".join(lines)


def _spot(tree: ast.Module, path: str, proposal: Proposal) -> ast.expr:
    """The node of the estimate of one registration."""
    own = proposal.registration
    name = f"register_{own.backend}_ci"
    for statement in tree.body:
        node = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(node, ast.Call) or node.lineno != own.line:
            continue
        if isinstance(node.func, ast.Name) and node.func.id == name:
            by_name = [word.value for word in node.keywords if word.arg == "est_time"]
            found = by_name or node.args[:1]
            if found and found[0].lineno == found[0].end_lineno:
                return found[0]
    raise DataError(f"{path}:{own.line}: the estimate of {name} isn't there; plan again.")
