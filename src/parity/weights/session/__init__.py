"""The transaction: both sides of begin, buckets, verify, commit or abort, over any transport."""
