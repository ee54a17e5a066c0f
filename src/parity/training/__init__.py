"""Turning samples into new weights, and the whole training state into checkpoints.

Order of use: `packing` (samples -> micro-batches) -> `forward` and `logprobs` (micro-batch ->
log-probabilities) -> `trainer` (loss, gradient, optimizer step); `checkpoint` is the store
of complete checkpoints, `state` what the trainer writes into one.
"""
