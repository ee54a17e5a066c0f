"""What travels: bytes of tensors in buckets, their digests, and what the trainer sends."""
