"""Training on several ranks: who computes what, and what they add up."""
