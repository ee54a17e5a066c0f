"""Publication of weights from the trainer to engines."""
