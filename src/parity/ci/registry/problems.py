"""What is wrong in test files, collected so that one run names everything.

Used by all of `registry/`. Invariant: a problem has a file, a line and a sentence with the remedy.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from parity.errors import ConfigError

SHOWN = 200


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that must be mended before there can be a plan."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class RegistrationError(ConfigError):
    """Test files whose registrations can't be used; `problems` holds each of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        shown = [str(problem) for problem in self.problems[:SHOWN]]
        if (more := len(self.problems) - SHOWN) > 0:
            shown.append(f"... and {more} more.")
        super().__init__("\n".join(shown))
