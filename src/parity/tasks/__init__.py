"""Task sources by name; `source.py` is the contract."""

from parity.registry import Registry

TASKS = Registry(
    "tasks",
    {
        "reasoning_gym": "parity.tasks.reasoning_gym:ReasoningGymSource",
        "jsonl": "parity.tasks.jsonl:JsonlSource",
        "parquet": "parity.tasks.parquet:ParquetSource",
    },
)
