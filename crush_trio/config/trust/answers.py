"""The user's answers to the wishes of a project: trusted once, trusted for good, or declined.

A directory that is trusted for good is in the user's file, as `crush_trio.trusted_directories`. One
that is trusted once is remembered by the open workspace only, and a declined one in a file of its own
in the user's data directory. The last two hold for exactly the content that the user was shown: with
other content the project is asked about again.
"""

from enum import StrEnum
from pathlib import Path
from typing import Final

from attrs import evolve, frozen

from crush_trio.config.errors import ConfigInvalid, ConfigWarning, ConfigWarningKind
from crush_trio.config.files import read_tree, write_tree
from crush_trio.config.sources import Trusted
from crush_trio.config.trust.wishes import Wishes
from crush_trio.private_files import locked, replace_file

_UNREADABLE: Final = "ignored: it is not valid, so you may be asked again; delete it"


class TrustAnswer(StrEnum):
    """What the user says to the wishes of a project."""

    ONCE = "once"
    """They are granted while the workspace is open."""
    ALWAYS = "always"
    """The directory is trusted from now on."""
    NO = "no"
    """They are ignored until the files change."""


@frozen(kw_only=True)
class TrustedOnce:
    """A directory that is trusted while its workspace is open and its files do not change."""

    directory: Path
    digest: str

    def grants(self, wishes: Wishes | None) -> Trusted:
        """Return the directory if *wishes* are those that were granted; otherwise nothing."""
        same = wishes is not None and (wishes.directory, wishes.digest) == (
            self.directory,
            self.digest,
        )
        return (self.directory,) if same else ()


def with_answer(wishes: Wishes, file: Path) -> tuple[Wishes, tuple[ConfigWarning, ...]]:
    """Return *wishes*, marked if *file* says that they were declined. Reads the disk."""
    try:
        declined = read_tree(file) or {}
    except ConfigInvalid:
        warning = ConfigWarning(kind=ConfigWarningKind.NOT_USED, file=file, text=_UNREADABLE)
        return wishes, (warning,)
    return evolve(wishes, declined=declined.get(str(wishes.directory)) == wishes.digest), ()


def write_declined(file: Path, wishes: Wishes) -> None:
    """Record that *wishes* were declined. Raises `LockHeld` or `OSError`. Writes to the disk."""
    with locked(file):
        try:
            before = read_tree(file) or {}
        except ConfigInvalid:
            before = {}
        after = {**before, str(wishes.directory): wishes.digest}
        replace_file(file, write_tree(after))
