"""The errors gptblock raises on purpose, and the exit code each ends a command with.

    GptblockError                      1   anything below; catch this to catch them all
    ├── InputError                     2   usage, or input that cannot be used
    │   ├── ConfigError                    a field or a key that is not allowed
    │   ├── CorpusError                    text that is not there, not readable, or too short
    │   ├── UnknownCharacterError          text outside the vocabulary
    │   └── RunExistsError                 training would write over a run
    ├── BundleError                    3   a bundle or a run that cannot be used
    │   ├── NotFoundError                  it is not there
    │   └── CorruptError                   it is there, and broken, altered, too new or not ours
    ├── UnavailableError               4   this machine lacks something
    │   ├── ProviderError                  an execution provider
    │   └── MissingExtraError              an optional dependency; the message holds the pip command
    ├── ProofError                     5   an exported file does not reproduce the model
    ├── DivergedError                  1   the training loss is no longer a finite number
    ├── LostProcessError               1   of several that train together, one has ended
    └── InterruptedRunError          130   stopped by the user, after saving

Every message says what was wrong, the value got, the values allowed, and what to do.
"""

from __future__ import annotations


class GptblockError(Exception):
    """Root of all errors that gptblock raises on purpose."""

    exit_code: int = 1
    is_told = False  # by another process, of several that train together


class InputError(GptblockError):
    """Usage, or input that cannot be used."""

    exit_code = 2


class ConfigError(InputError):
    """A configuration field or key that is not allowed."""


class CorpusError(InputError):
    """Training text that is not there, not readable, or too short."""


class UnknownCharacterError(InputError):
    """Text with a character outside the vocabulary."""


class RunExistsError(InputError):
    """Training would write over a run."""


class BundleError(GptblockError):
    """A bundle or a run that cannot be used."""

    exit_code = 3


class NotFoundError(BundleError):
    """A bundle or a run that is not there."""


class CorruptError(BundleError):
    """A bundle or a run that is there and broken, altered, too new or not ours."""


class UnavailableError(GptblockError):
    """This machine lacks something that the command needs."""

    exit_code = 4


class ProviderError(UnavailableError):
    """An execution provider, or the ONNX Runtime behind it, that cannot be used here."""


class MissingExtraError(UnavailableError):
    """An optional dependency that is not installed.

    `extra` is the extra's name or, where several serve, the first choice; the message ends in the
    command that installs it.
    """

    def __init__(self, what: str, missing: str, extra: str) -> None:
        super().__init__(f"{what} needs {missing}, which is not installed: pip install 'gptblock[{extra}]'")


class ProofError(GptblockError):
    """An exported file does not reproduce the model."""

    exit_code = 5


class DivergedError(GptblockError):
    """The training loss is no longer a finite number."""


class LostProcessError(GptblockError):
    """Of several processes that train together, another one has ended."""


class InterruptedRunError(GptblockError):
    """Stopped by the user, after saving."""

    exit_code = 130
