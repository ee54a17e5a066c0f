"""Commands that read a run's ledger: `parity audit` and `parity diff`."""
