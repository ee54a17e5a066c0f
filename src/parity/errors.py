"""Every error that Parity raises on purpose, one class per kind of remedy.

A message is one sentence that says what was found, what is allowed and what to do,
and names the config key where there is one.
"""


class ParityError(Exception):
    """The root of all errors that Parity raises on purpose."""

    is_late = False  # whether a run had begun to train; set where the run ends


class ConfigError(ParityError):
    """The run file or an override can't be used as written; change the named key."""


class UnsupportedError(ParityError):
    """A valid wish that this build, model or device can't fulfil."""


class DataError(ParityError):
    """A record of a data set can't be used; carries `place: reason`."""


class SourceError(DataError):
    """A data set as a whole can't be read any more; no policy passes over that."""


class RewardError(ParityError):
    """A reward function broke its contract (count, type, finiteness)."""


class EngineError(ParityError):
    """An engine failed at something; another try may do."""


class RequestError(EngineError):
    """A request that an engine can't serve however often it's asked, such as one too long."""


class EngineLostError(EngineError):
    """An engine that was closed or has broken: it serves nothing any more."""


# What a user gave and can mend: found before anything was trained, it is no failed run.
INPUT_ERRORS = (ConfigError, DataError, RewardError, UnsupportedError)


def is_refused_input(error: BaseException) -> bool:
    """Whether a command ended because of what it was given, before anything was trained."""
    return isinstance(error, INPUT_ERRORS) and not error.is_late


class TransferError(ParityError):
    """A weight publication was refused or broken off; the old version is still served."""


class TrainingError(ParityError):
    """A step can't be taken, for example because a gradient isn't finite."""


class EvaluationError(ParityError):
    """An evaluation has no result, since engine or grader broke at too many answers."""


class CheckpointError(ParityError):
    """A checkpoint is missing, incomplete or of another run."""


class RoleError(ParityError):
    """A process of the run (trainer rank, engine replica) died, failed or didn't answer."""


class DeadlineError(ParityError):
    """A wait passed its deadline; says what was waited for, since when, and the last event."""
