"""TRL's side of bench/peers.py; prints one JSON line: [[reward, seconds of the step], ...].

Arguments: model folder, tasks JSONL, steps, seed, threads. Needs trl==1.16.0.
"""

import json
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Remembers reward and wall-clock seconds of every step."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float]] = []
        self.last = 0.0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        self.last = time.perf_counter()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        logs = kwargs.get("logs")
        if isinstance(logs, dict) and "reward" in logs:
            now = time.perf_counter()
            self.rows.append((float(logs["reward"]), now - self.last))
            self.last = now


def exact(
    prompts: list[str], completions: list[str], answer: list[str], **_: object
) -> list[float]:
    return [float(found == wanted) for found, wanted in zip(completions, answer, strict=True)]


def main() -> None:
    model_dir, tasks_path, steps, seed, threads = sys.argv[1:6]
    torch.set_num_threads(int(threads))
    tokenizer = AutoTokenizer.from_pretrained(model_dir, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    records = [json.loads(line) for line in Path(tasks_path).read_text().splitlines()]
    config = GRPOConfig(
        output_dir=str(Path(model_dir).parent / "trl"),
        use_cpu=True,
        bf16=False,
        seed=int(seed),
        max_steps=int(steps),
        per_device_train_batch_size=256,
        gradient_accumulation_steps=1,
        num_generations=8,
        max_completion_length=8,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        gradient_checkpointing=False,
    )
    clock = Clock()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=exact,
        args=config,
        train_dataset=Dataset.from_list(records),
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(json.dumps(clock.rows))


if __name__ == "__main__":
    main()
