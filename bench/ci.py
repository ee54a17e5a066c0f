"""Speed of `parity ci plan` on a large repository, and how good its shards are.

Writes a synthetic repository of registered tests (100 lines each), plans it through the command
line in a process of its own, and checks the plan: disjoint, complete, the same twice. Then
compares small partitions with an exhaustive search that shares no code with the planner.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from parity.ci.partition.shards import lower_bound, partition

TOML = """schema = 1
[project]
roots = ["tests"]
[backends.cpu]
description = "hosted"
accelerator = false
[backends.cuda]
description = "NVIDIA"
[backends.rocm]
description = "AMD"
[labels]
short = "short"
long = "long"
[scopes.all]
labels = ["*"]
[cadences.regular]
[events.push]
cadence = "regular"
scope = "all"
"""
SUITE = """[suites.{name}]
description = "synthetic"
backend = "{backend}"
devices = {devices}
runner = ["x"]
shards = {shards}
"""
SUITES = {"cpu": ("cpu", 0, 8), "h100": ("cuda", 4, 6), "mi300": ("rocm", 4, 4)}
BODY = '''
def test_{at}():
    """Checks a step."""
    values = [step * {at} for step in range(10)]
    assert f"{{values[0]}}" == "0", "the first is zero"
    # A comment with (brackets and "quotes".
    assert sum(values) == 45 * {at}


'''


def write_repository(root: Path, count: int) -> None:
    """One folder per hundred tests, each test on one to three suites."""
    draw = random.Random(0)
    parts = [
        SUITE.format(name=name, backend=backend, devices=devices, shards=shards)
        for name, (backend, devices, shards) in SUITES.items()
    ]
    (root / "ci.toml").write_text(TOML + "".join(parts))
    for at in range(count):
        names = [name for name in SUITES if draw.random() < 0.4] or ["cpu"]
        backends = [SUITES[name][0] for name in names]
        imports = ", ".join(f"register_{backend}_ci" for backend in backends)
        lines = [f"from parity.ci.register import {imports}\n\n"]
        for name, backend in zip(names, backends, strict=True):
            seconds = round(draw.lognormvariate(4, 1.2), 1) + 1
            lines.append(f'register_{backend}_ci({seconds}, "{name}", labels=["short"])\n')
        lines += [BODY.format(at=each) for each in range(12)]
        place = root / "tests" / f"part_{at // 100:03}" / f"test_{at:05}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("".join(lines))


def plan(root: Path) -> tuple[str, float]:
    begun = time.perf_counter()
    words = [sys.executable, "-m", "parity.cli.main", "ci", "plan", "--json", "--root", str(root)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    return done.stdout, time.perf_counter() - begun


def check(text: str, again: str, count: int) -> None:
    document = json.loads(text)
    assert text == again, "two plans of the same repository differ"
    assert document["num_skipped"] == 0
    for suite in document["suites"]:
        loads = [shard["est_time_s"] for shard in suite["shards"]]
        paths = [test["path"] for shard in suite["shards"] for test in shard["tests"]]
        assert max(Counter(paths).values()) == 1, "a test is in two shards"
        sizes = [
            round(1000 * test["est_time_s"]) for shard in suite["shards"] for test in shard["tests"]
        ]
        bound = lower_bound(sizes, len(loads)) / 1000
        ratio = max(loads) / bound
        print(
            f"  {suite['suite']}: {len(paths)} tests, {len(loads)} shards,"
            f" longest / lower bound {ratio:.6f}"
        )
        assert ratio <= 4 / 3
    planned = {
        test["path"]
        for suite in document["suites"]
        for shard in suite["shards"]
        for test in shard["tests"]
    }
    assert len(planned) == count, f"{count - len(planned)} tests are lost"


def optimum(sizes: list[int], count: int) -> int:
    """The best makespan: which loads can be reached, item by item, as sorted tuples."""
    reached = {(0,) * count}
    for size in sizes:
        following = set()
        for loads in reached:
            for at in range(count):
                following.add(tuple(sorted((*loads[:at], loads[at] + size, *loads[at + 1 :]))))
        reached = following
    return min(loads[-1] for loads in reached)


def compare(cases: int) -> None:
    draw = random.Random(1)
    for items, count in ((8, 2), (8, 3), (10, 3), (10, 4)):
        ratios = []
        for _ in range(cases):
            sizes = [round(draw.lognormvariate(4, 1.2)) + 1 for _ in range(items)]
            shards = partition({f"t{at}": float(size) for at, size in enumerate(sizes)}, count)
            longest = max(sum(sizes[int(key[1:])] for key in shard) for shard in shards)
            ratios.append(longest / optimum(sizes, count))
        print(
            f"  {items} tests, {count} shards: worst ratio to the optimum {max(ratios):.4f}"
            f" of {cases} cases"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=10_000)
    parser.add_argument("--cases", type=int, default=50, help="small partitions of each size")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_repository(root, arguments.tests)
        text, first_s = plan(root)
        again, second_s = plan(root)
    print(
        f"parity ci plan --json, {arguments.tests} registered tests:"
        f" {first_s:.2f} s, again {second_s:.2f} s (starting Python included)"
    )
    check(text, again, arguments.tests)
    print("small partitions against an exhaustive search:")
    compare(arguments.cases)


if __name__ == "__main__":
    main()
