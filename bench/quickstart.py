"""From the command to the final evaluation: `parity train quickstart` on several seeds.

Each seed is a process of its own, started as a user would; clocks run outside of it. The row
says how long it took until the first reward was printed and until the command ended, the
accuracy before and after, and where the time went.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(recipe: str, seed: int, folder: Path, words: list[str]) -> dict[str, object]:
    command = [sys.executable, "-u", "-m", "parity.cli.main", "train", recipe, f"seed={seed}"]
    command += [f"output.dir={folder}", f"output.name=seed-{seed}", "display=plain", *words]
    started = time.perf_counter()
    first_reward_s = None
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"}
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if (
                first_reward_s is None
                and "reward" in line
                and "step" not in line.split("reward")[0]
            ):
                first_reward_s = time.perf_counter() - started
            sys.stderr.write(line)
    wall_s = time.perf_counter() - started
    if process.returncode != 0:
        raise SystemExit(f"seed {seed} ended with exit code {process.returncode}")
    summary = json.loads((folder / f"seed-{seed}" / "summary.json").read_text())
    keys = ("eval_first", "eval_last", "train_seconds", "steps", "tokens_per_s", "seconds")
    return {"seed": seed, "wall_s": wall_s, "first_reward_s": first_reward_s} | {
        key: summary[key] for key in keys
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("words", nargs="*", help="overrides, as for parity train")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="parity-quickstart-") as name:
        rows = [run(args.recipe, seed, Path(name), args.words) for seed in range(args.seeds)]
    print(f"{'seed':>4} {'wall s':>7} {'first reward s':>15} {'accuracy':>16} {'steps/s':>8}")
    for row in rows:
        accuracy = f"{row['eval_first']:.3f} -> {row['eval_last']:.3f}"
        speed = float(str(row["steps"])) / float(str(row["train_seconds"]))
        first = "-" if row["first_reward_s"] is None else f"{row['first_reward_s']:.1f}"
        print(f"{row['seed']:>4} {row['wall_s']:>7.1f} {first:>15} {accuracy:>16} {speed:>8.2f}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
