"""The durable record of what became of every task: events in SQLite, payloads beside them."""
