"""Everything together: event and repository in, a plan with shards and reasons out."""
