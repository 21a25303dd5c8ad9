"""What loading has to say that is no reason to refuse: one sentence each, about one place."""

from enum import StrEnum
from pathlib import Path

from attrs import frozen
from typing_extensions import override


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
