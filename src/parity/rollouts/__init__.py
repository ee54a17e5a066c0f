"""Episodes, groups, the bounded buffer, and the dump of what was generated."""
