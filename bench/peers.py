"""Parity beside TRL 1.16.0: the same model, task, batch and number of updates, in one run.

Run it by `make bench-peers`, which gives TRL an environment of its own. The task: sort six
digits ("503219>" -> "012359"); the starting model writes the rewarded style in about one
answer of five. Both sides take 32 prompts x 8 answers a step with one update per batch, the
same learning rate and the same clip; the sides alternate, and the ratio of the best rounds
counts. TRL's part runs as bench/peers_trl.py under --trl-python.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
DISCOUNT = 0.9  # of the running mean of rewards, on both sides
GOALS = (0.5, 0.8, 0.9)


def write_tasks(path: Path, *, number: int, seed: int) -> None:
    noise = random.Random(seed)
    with path.open("w") as file:
        for _ in range(number):
            digits = [str(noise.randrange(10)) for _ in range(6)]
            record = {"prompt": "".join(digits) + ">", "answer": "".join(sorted(digits))}
            file.write(json.dumps(record) + "\n")


def parity(*words: str, threads: int) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "parity.cli.main", *words]
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)


def make_start(folder: Path, tasks: Path, *, threads: int) -> Path:
    """The starting model: 0.8 M parameters, two answer styles, the rewarded one at 20 %."""
    recipe = folder / "start.yaml"
    recipe.write_text(START)
    parity(
        *("sft", str(recipe), f"tasks.path={tasks}", f"output.dir={folder}", "output.name=start"),
        threads=threads,
    )
    return folder / "start" / "model"


START = """
kind: sft
steps: 300
batch_size: 128
tiny_model: {hidden_size: 128, intermediate_size: 384, num_layers: 4, num_heads: 4,
             num_key_value_heads: 2, head_dim: 32, max_length: 256}
tasks: {name: jsonl, chat: false}
answers:
  - {weight: 0.2, template: "{answer}"}
  - {weight: 0.8, template: "r{answer}", transform: reverse}
reward: {name: exact}
prompts: {max_prompt_tokens: 16}
sampling: {max_new_tokens: 8}
optimizer: {lr: 1.0e-3, beta2: 0.95}
schedule: {warmup_steps: 50}
eval: {num_tasks: 64, temperature: 1.0}
"""

RUN = """
kind: train
tasks: {name: jsonl, chat: false}
reward: {name: exact}
prompts: {max_prompt_tokens: 16}
sampling: {max_new_tokens: 8, temperature: 1.0}
rollouts: {groups_per_step: 32, group_size: 8, steps_per_publish: 1}
loss: {clip_low: 0.2, clip_high: 0.28}
optimizer: {lr: 2.0e-4, beta2: 0.95, weight_decay: 0.0}
trainer: {max_grad_norm: 1.0}
eval: {num_tasks: 64, temperature: 1.0}
checkpoint: {export: false}
"""


def run_parity(
    folder: Path,
    name: str,
    *,
    model: Path,
    tasks: Path,
    args: argparse.Namespace,
    max_lag: float,
    seed: int,
) -> dict[str, object]:
    recipe = folder / "run.yaml"
    recipe.write_text(RUN)
    parity(
        *("train", str(recipe), f"model.path={model}", f"tasks.path={tasks}"),
        *(f"steps={args.steps}", f"rollouts.max_lag={max_lag}", f"seed={seed}"),
        *(f"output.dir={folder}", f"output.name={name}"),
        threads=args.threads,
    )
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").open()]
    steps = [row for row in rows if "rollout/raw_reward" in row]
    return summarize([(row["rollout/raw_reward"], row["time/step_s"]) for row in steps])


def summarize(steps: list[tuple[float, float]]) -> dict[str, object]:
    """Steps per second over the whole loop, and (step, seconds) at which each goal was passed."""
    elapsed, mean = 0.0, None
    hits: dict[str, tuple[int, float]] = {}
    for number, (reward, seconds) in enumerate(steps, start=1):
        elapsed += seconds
        mean = reward if mean is None else DISCOUNT * mean + (1 - DISCOUNT) * reward
        for goal in GOALS:
            if mean > goal:
                hits.setdefault(str(goal), (number, round(elapsed, 2)))
    return {"steps_per_s": len(steps) / elapsed, "hits": hits, "final": mean}


def run_trl(
    python: Path, *, model: Path, tasks: Path, args: argparse.Namespace, seed: int
) -> dict[str, object]:
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
    command = [str(python), str(HERE / "peers_trl.py"), str(model), str(tasks), str(args.steps)]
    done = subprocess.run(
        [*command, str(seed), str(args.threads)],
        check=True,
        env=environment,
        capture_output=True,
        text=True,
    )
    steps = json.loads(done.stdout.strip().splitlines()[-1])
    return summarize([(reward, seconds) for reward, seconds in steps])


def table(rows: list[tuple[str, dict[str, object]]]) -> str:
    lines = [f"{'side':<18}{'steps/s':>9}  time to mean reward 0.5 / 0.8 / 0.9 (s)"]
    for name, result in rows:
        hits = result["hits"]
        assert isinstance(hits, dict)
        times = [f"{hits[str(g)][1]:.1f}" if str(g) in hits else "-" for g in GOALS]
        lines.append(f"{name:<18}{result['steps_per_s']:>9.2f}  {' / '.join(times)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trl-python", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[tuple[str, dict[str, object]]] = []
    with tempfile.TemporaryDirectory(prefix="parity-peers-") as name:
        folder = Path(name)
        tasks = folder / "sort.jsonl"
        write_tasks(tasks, number=20_000, seed=0)
        model = make_start(folder, tasks, threads=args.threads)
        for seed in range(args.rounds):
            common = {"model": model, "tasks": tasks, "args": args, "seed": seed}
            rows.append((f"trl, seed {seed}", run_trl(args.trl_python, **common)))
            for label, lag in (("parity lag 1", 1.0), ("parity lag 0", 0.0)):
                found = run_parity(
                    folder, f"{label}-{seed}".replace(" ", "-"), max_lag=lag, **common
                )
                rows.append((f"{label}, seed {seed}", found))
    print(table(rows))
    best = {
        side: max(float(str(r["steps_per_s"])) for n, r in rows if n.startswith(side))
        for side in ("trl", "parity lag 1", "parity lag 0")
    }
    quickest = {
        side: min(
            (r["hits"].get("0.9", (0, float("inf")))[1] for n, r in rows if n.startswith(side))
        )
        for side in best
    }
    for side in ("parity lag 1", "parity lag 0"):
        share = quickest[side] / quickest["trl"] if quickest["trl"] < float("inf") else None
        told = "time to 0.9 not comparable" if share is None else f"{share:.2f} of its time to 0.9"
        print(f"{side}: {best[side] / best['trl']:.2f} x TRL's steps/s, {told}")
    if args.json:
        args.json.write_text(
            json.dumps({"rows": rows, "best": best, "to_0.9_s": quickest}, indent=2)
        )


if __name__ == "__main__":
    main()
