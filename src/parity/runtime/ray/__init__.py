"""`runtime=ray`: trainer ranks and engine replicas as actors; imported where a run asks for it."""
