"""Configuration errors and warnings.

No error or warning has a value of the configuration in it, because values may be secrets. They name
the file, the key and what is expected there.
"""

from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from attrs import frozen
from typing_extensions import override

from crush_trio.errors import BadRequest, NotFound, Unavailable


class ConfigWarningKind(StrEnum):
    """The kind of a configuration warning, for programs."""

    SCRIPT_NOT_RUN = "script_not_run"
    UNKNOWN_KEY = "unknown_key"
    NOT_TRUSTED = "not_trusted"
    NOT_EXPANDED = "not_expanded"
    NOT_USED = "not_used"
    PROVIDER_SKIPPED = "provider_skipped"
    BAD_ADDRESS = "bad_address"
    NO_CREDENTIALS = "no_credentials"
    MODEL_REPLACED = "model_replaced"
    MODEL_UNLISTED = "model_unlisted"
    DEMO = "demo"


@frozen(kw_only=True)
class ConfigWarning:
    """A configuration warning: one sentence about one place. It holds no secrets."""

    kind: ConfigWarningKind
    text: str
    file: Path | None = None
    key: str = ""

    @override
    def __str__(self) -> str:
        """Return the warning as one line: the file, the key, the sentence."""
        file = "" if self.file is None else str(self.file)
        return ": ".join(part for part in (file, self.key, self.text) if part)


TEXT_LIMIT: Final = 512
"""The most bytes of the text of an error about a template (I4)."""


class ConfigInvalid(BadRequest):
    """A configuration file, or a change to one, is not valid; the detail says where."""

    code = "config_invalid"
    message = "invalid configuration"

    @classmethod
    def at(cls, file: Path | str, key: str, reason: str) -> Self:
        """Return the error about one place: the file, the key, what is expected."""
        return cls(": ".join(part for part in (str(file), key, reason) if part))


class ConfigLocked(Unavailable):
    """Another program kept the lock of a configuration file for longer than we wait."""

    code = "config_locked"
    message = "another program is changing the configuration; try again"


class ConfigNotWritten(Unavailable):
    """The operating system refused to write a configuration file, which is unchanged."""

    code = "config_not_written"
    message = "the configuration could not be written and was left unchanged"


class ExpansionFailed(Unavailable):
    """A template could not be filled in. The text shows the template, never a value."""

    code = "config_not_expanded"
    message = "a configured value could not be expanded"
    title = "Configuration Error"

    @classmethod
    def at(cls, file: Path | str, key: str, reason: str) -> Self:
        """Return the error about one template, shortened and without control characters."""
        room = TEXT_LIMIT - len(cls.message) - len(": ")
        return cls(printable(": ".join(part for part in (str(file), key, reason) if part), room))


class NotConfigured(NotFound):
    """No provider or server of this name is configured and enabled."""

    code = "not_configured"
    message = "not configured"


def printable(text: str, limit: int) -> str:
    """Return *text* on one line, without control characters, at most *limit* bytes long."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    data = clean.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    mark = "…"
    return data[: max(0, limit - len(mark.encode()))].decode("utf-8", "ignore") + mark
