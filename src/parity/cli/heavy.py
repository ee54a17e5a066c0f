"""Importing torch and transformers at their best speed.

Used by the commands that run a model. The two make more than half a million objects that live
until the process ends. The garbage collector would look at them over and over while they are
imported, in every full collection of the run, and again at the exit: it is off during the
import and never looks at what was made there.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def imports() -> Generator[None]:
    """For a block that does nothing but import."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
