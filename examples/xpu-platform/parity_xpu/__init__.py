"""Intel GPUs as a platform of Parity."""
