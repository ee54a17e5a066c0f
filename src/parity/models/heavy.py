"""Importing torch and transformers at their best speed, and a collector that fits a run.

Used by the commands that run a model and by the processes of a Ray run. The two make more than
half a million objects that live until the process ends. The garbage collector would look at them
over and over while they are imported, in every full collection of the run, and again at the exit:
it is off during the import and never looks at what was made there. Afterwards it comes more rarely:
a run holds tens of thousands of episodes without a cycle among them, at which it looked for a fifth
of the driver's time; cycles still go after so many new objects.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager

THRESHOLDS = (20_000, 20, 20)  # new objects, then collections of the generation below


@contextmanager
def imports() -> Generator[None]:
    """For a block that does nothing but import."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        if was_on:
            gc.enable()
