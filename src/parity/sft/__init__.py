"""`parity sft`: the loop of a supervised run, and the command around it."""
