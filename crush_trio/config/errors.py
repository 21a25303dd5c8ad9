"""What can be wrong with a configuration, and what its reader can do about it.

No error in here repeats a value: configurations hold keys. They name the file, the place in it, and
what should have been there.

What loading has to say that is no reason to refuse: one sentence each, about one place.
"""

from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from attrs import frozen
from typing_extensions import override

from crush_trio.errors import BadRequest, NotFound, Unavailable


class NoticeKind(StrEnum):
    """What a notice is about, for programs."""

    SCRIPT_NOT_RUN = "script_not_run"
    UNKNOWN_KEY = "unknown_key"
    NOT_TRUSTED = "not_trusted"
    NOT_EXPANDED = "not_expanded"
    NOT_USED = "not_used"
    REDIRECTED = "redirected"
    NO_CREDENTIALS = "no_credentials"
    MODEL_REPLACED = "model_replaced"
    DEMO = "demo"


@frozen(kw_only=True)
class Notice:
    """Something the user may want to know about the configuration. It holds no secrets."""

    kind: NoticeKind
    text: str
    file: Path | None = None
    key: str = ""

    @override
    def __str__(self) -> str:
        """Return the notice as one line: the file, the place in it, the sentence."""
        file = "" if self.file is None else str(self.file)
        return ": ".join(part for part in (file, self.key, self.text) if part)


TEXT_LIMIT: Final = 512
"""How many bytes the text of an error about a template has at most (I4)."""


class ConfigInvalid(BadRequest):
    """A configuration file, or a change to one, is not what it should be; the detail says where."""

    code = "config_invalid"
    message = "invalid configuration"

    @classmethod
    def at(cls, file: Path | str, key: str, reason: str) -> Self:
        """Return the error about one place: the file, the path to the value, what is expected."""
        return cls(": ".join(part for part in (str(file), key, reason) if part))


class ConfigLocked(Unavailable):
    """Another program kept the lock of a configuration file for longer than we wait."""

    code = "config_locked"
    message = "another program is changing the configuration; try again"


class ConfigNotWritten(Unavailable):
    """The operating system refused to write a configuration file, which is as it was before."""

    code = "config_not_written"
    message = "the configuration could not be written and was left unchanged"


class ExpansionFailed(Unavailable):
    """A value could not be made from its template. The text shows the template, never a value."""

    code = "config_not_expanded"
    message = "a configured value could not be expanded"

    @classmethod
    def at(cls, file: Path | str, key: str, reason: str) -> Self:
        """Return the error about one template, short and printable whatever is in it."""
        room = TEXT_LIMIT - len(cls.message) - len(": ")
        return cls(printable(": ".join(part for part in (str(file), key, reason) if part), room))


class NotConfigured(NotFound):
    """No provider or server of this name is configured and enabled."""

    code = "not_configured"
    message = "not configured"


def printable(text: str, limit: int) -> str:
    """Return *text* on one line, without anything a terminal could obey, in *limit* bytes at most."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    data = clean.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    mark = "…"
    return data[: max(0, limit - len(mark.encode()))].decode("utf-8", "ignore") + mark
