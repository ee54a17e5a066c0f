"""Grader processes: the driver's side, the wire between the two, and what bounds a process."""
