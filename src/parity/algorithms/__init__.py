"""The mathematics of training, as pure functions of tensors; no state, no device, no I/O."""
