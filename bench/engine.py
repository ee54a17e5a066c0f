"""Decoding speed of the embedded engine beside transformers.generate (and vLLM where it is).

    python bench/engine.py [--threads 2] [--quick] [--json FILE]

One process with pinned threads, a tiny random Qwen3 that is built on the spot, four kinds
of work: answers of one length, answers of log-normal length (where transformers.generate has
to run every batch to its longest answer), the many short answers of a small RL step, and the
same from a model that is nearly sure of them, so that siblings repeat each other ("siblings").
`rows` is what an engine computed for a sampled token; the embedded engine decodes one row for
all siblings whose answers are still equal, and none for a first token.
Engines take turns, and the best of three repeats counts. Only tokens that were asked for
count, in all engines. The embedded engine and vLLM give log-probs too, transformers doesn't.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from parity.engines.config import EmbeddedEngineConfig, ForwardPath
from parity.engines.embedded.engine import EmbeddedEngine
from parity.types import Sampling

VOCABULARY = 128
MAX_LENGTH = 512
GROUP_SIZE = 8
PEAKED = 0.05  # temperature at which siblings repeat each other about as in a trained model


@dataclass(frozen=True)
class Work:
    """Requests that are all there at the start; `batch` of them are decoded at a time."""

    name: str
    batch: int
    prompt_tokens: int
    answer_tokens: tuple[int, ...]  # per request
    temperature: float = 1.0

    def prompts(self, turn: int) -> list[tuple[int, ...]]:
        """Random prompts, each shared by a group of siblings; other ones every turn.

        An engine may keep what it computed for a prompt, which no step of a training run
        could use again.
        """
        generator = np.random.default_rng(turn)
        groups = -(-len(self.answer_tokens) // GROUP_SIZE)
        rows = generator.integers(VOCABULARY, size=(groups, self.prompt_tokens)).tolist()
        return [tuple(rows[n // GROUP_SIZE]) for n in range(len(self.answer_tokens))]


@dataclass
class Row:
    """One engine on one kind of work."""

    work: str
    batch: int
    engine: str
    tokens: int
    repeats_s: list[float] = field(default_factory=list)
    decoded_rows: int | None = None  # of all decoding passes of one repeat; None: not counted
    note: str = ""

    @property
    def tokens_per_s(self) -> float | None:
        """Of the best repeat."""
        return self.tokens / min(self.repeats_s) if self.repeats_s else None


Runner = Callable[[Work, int], Awaitable[int | None]]  # the rows that were decoded


def tiny_model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


def all_work(*, is_quick: bool) -> list[Work]:
    batches = (64,) if is_quick else (64, 256)
    length = 32 if is_quick else 128
    work = [Work("same length", batch, 16, (length,) * batch) for batch in batches]
    for batch in batches:
        drawn = np.random.default_rng(2).lognormal(np.log(32), 1.0, size=4 * batch)
        lengths = tuple(np.clip(drawn, 1, 256).astype(int).tolist())
        work.append(Work("log-normal", batch, 16, lengths))
    short = (8,) * batches[-1]
    return [
        *work,
        Work("short answers", batches[-1], 60, short),
        Work("siblings", batches[-1], 16, short, temperature=PEAKED),
    ]


def transformers_runner(model: PreTrainedModel) -> Runner:
    async def run(work: Work, turn: int) -> int | None:
        prompts = work.prompts(turn)
        for start in range(0, len(prompts), work.batch):
            ids = torch.tensor(prompts[start : start + work.batch])
            longest = max(work.answer_tokens[start : start + work.batch])
            model.generate(  # pyright: ignore[reportCallIssue]
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=work.temperature,
                top_k=0,
                max_new_tokens=longest,
                min_new_tokens=longest,
            )
        return None

    return run


def embedded_runner(
    model: PreTrainedModel, forward: ForwardPath, *, threads: int
) -> tuple[Runner, list[EmbeddedEngine]]:
    engines: dict[int, EmbeddedEngine] = {}
    built: list[EmbeddedEngine] = []

    async def run(work: Work, turn: int) -> int | None:
        if work.batch not in engines:
            engines[work.batch] = EmbeddedEngine(
                model,
                config=EmbeddedEngineConfig(max_concurrent=work.batch, forward=forward),
                max_length=MAX_LENGTH,
                eos_token_ids=(),
                decode=None,
                device=torch.device("cpu"),
                threads=threads,
            )
            built.append(engines[work.batch])
        engine = engines[work.batch]
        before = engine.stats().decoded_rows or 0
        calls = (
            engine.generate(prompt, Sampling(max_new_tokens=count, temperature=work.temperature))
            for prompt, count in zip(work.prompts(turn), work.answer_tokens, strict=True)
        )
        completions = await asyncio.gather(*calls)
        assert [len(c.tokens) for c in completions] == list(work.answer_tokens)
        return (engine.stats().decoded_rows or 0) - before

    return run, built


def vllm_runner(model: PreTrainedModel, *, threads: int) -> Runner:
    """vLLM in this process; its settings are those that were fastest on CPUs."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    import vllm  # pyright: ignore[reportMissingImports]

    folder = tempfile.mkdtemp(prefix="parity-bench-")
    model.save_pretrained(folder)
    engine = vllm.LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=MAX_LENGTH,
        max_num_seqs=256,
        enforce_eager=True,
    )

    async def run(work: Work, turn: int) -> int | None:
        sampling = [
            vllm.SamplingParams(
                max_tokens=count,
                temperature=work.temperature,
                ignore_eos=True,
                logprobs=0,
                detokenize=False,
            )
            for count in work.answer_tokens
        ]
        prompts = [{"prompt_token_ids": list(prompt)} for prompt in work.prompts(turn)]
        engine.generate(prompts, sampling, use_tqdm=False)
        return None

    return run


async def measure(runners: dict[str, Runner], work: Sequence[Work], *, repeats: int) -> list[Row]:
    """Engines take turns, so that a disturbance of the machine hits all of them."""
    rows: list[Row] = []
    for item in work:
        by_engine = {
            name: Row(item.name, item.batch, name, sum(item.answer_tokens)) for name in runners
        }
        rows += by_engine.values()
        for turn in range(repeats + 1):
            for name, run in runners.items():
                started = time.perf_counter()
                by_engine[name].decoded_rows = await run(item, turn)
                if turn > 0:  # the first one warms up
                    by_engine[name].repeats_s.append(time.perf_counter() - started)
    return rows


def table(rows: Sequence[Row]) -> str:
    base = {(r.work, r.batch): r.tokens_per_s for r in rows if r.engine == "transformers"}
    lines = [f"{'work':15} {'batch':>5} {'engine':18} {'tok/s':>8} {'ratio':>6} {'rows':>5}"]
    for row in rows:
        speed, reference = row.tokens_per_s, base[row.work, row.batch]
        if speed is None or reference is None:
            lines.append(f"{row.work:15} {row.batch:5} {row.engine:18} {row.note:>8}")
        else:
            rows_of = "" if row.decoded_rows is None else f"{row.decoded_rows / row.tokens:5.2f}"
            lines.append(
                f"{row.work:15} {row.batch:5} {row.engine:18} {speed:8,.0f} "
                f"{speed / reference:6.2f} {rows_of}".rstrip()
            )
    return "\n".join(lines)


async def bench(*, threads: int, is_quick: bool) -> list[Row]:
    model = tiny_model()
    lean, lean_engines = embedded_runner(model, "lean", threads=threads)
    generic, generic_engines = embedded_runner(model, "generic", threads=threads)
    runners: dict[str, Runner] = {
        "transformers": transformers_runner(model),
        "embedded lean": lean,
        "embedded generic": generic,
    }
    work = all_work(is_quick=is_quick)
    has_vllm = importlib.util.find_spec("vllm") is not None
    if has_vllm:
        runners["vllm"] = vllm_runner(model, threads=threads)
    rows = await measure(runners, work, repeats=1 if is_quick else 3)
    if not has_vllm:
        rows += [Row(w.name, w.batch, "vllm", 0, note="not installed") for w in work]
    for engine in (*lean_engines, *generic_engines):
        await engine.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of every engine")
    parser.add_argument("--quick", action="store_true", help="small sizes, one repeat")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = asyncio.run(bench(threads=arguments.threads, is_quick=arguments.quick))
    print(table(rows))
    if arguments.json is not None:
        result = {
            "threads": arguments.threads,
            "is_quick": arguments.quick,
            "cpu": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "rows": [asdict(row) | {"tokens_per_s": row.tokens_per_s} for row in rows],
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
