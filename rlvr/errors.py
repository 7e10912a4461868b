"""Errors that are the user's to mend: each names what is wrong, with which value, and what to do about it."""


class RlvrError(Exception):
    """Base of every error the command line reports without a traceback (exit code 2)."""


class ConfigError(RlvrError, ValueError):
    """A wrong key, type, range or combination in the configuration.

    Args:
        key: dotted name of the key, as typed in the shell (`objective.trust.kind`).
        value: the value found there.
        mend: what to write instead, or what to do.
    """

    def __init__(self, key: str, value: object, mend: str) -> None:
        super().__init__(f"{key}={value!r}: {mend}")
        self.key = key
        self.value = value
        self.mend = mend


class DataError(RlvrError, ValueError):
    """A data set that cannot be read or has no usable row; names file, row and column."""


class ModelError(RlvrError, ValueError):
    """A model folder that cannot be used: missing weights, tokenizer or chat template."""


class CheckpointError(RlvrError, ValueError):
    """A checkpoint that is damaged, incomplete or of another run."""


class HandoverError(RlvrError, RuntimeError):
    """The rollout engine does not hold the weights that the policy handed over."""


class ScoringError(RlvrError, RuntimeError):
    """Too many verifier faults to go on: the rewards cannot be trusted."""
