"""Where a run's parts execute; `runtime.py` is the contract."""
