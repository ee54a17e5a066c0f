"""`engine.name=embedded`: Parity's own engine, in the process that asks."""
