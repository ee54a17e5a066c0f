"""What devices say about themselves; `telemetry.py` is the contract, one file per source."""
