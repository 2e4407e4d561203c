"""Errors of the engine that are fit to show: what is wrong, where, and the way out."""


class EngineError(Exception):
    """Base of every error the engine raises on purpose."""


class CheckpointError(EngineError):
    """The files on disk are not a checkpoint this engine can run. Names file and tensor."""


class ConfigError(CheckpointError):
    """config.json is missing, malformed, or describes a model this engine cannot run."""


class ContextError(EngineError):
    """The prompt, or the answer asked for, does not fit the context."""


class NumericsError(EngineError):
    """The step produced NaN or Inf; no token was taken from it.

    record: the step's tap record; None without taps.
    """

    def __init__(self, message: str, record: bytes | None = None) -> None:
        super().__init__(message)
        self.record = record


class LoadStopped(EngineError):
    """The user ended the load."""
