"""`Redactor`: removes secrets from what a recording keeps, and counts them by name.

A known secret is counted under the name of its variable, or as `known` if only its value is known. Text
that merely looks like a secret is counted as `pattern`. Values are never kept.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from attrs import define, field

from crush_trio.config.redaction import REDACTED, is_secret_name, map_text, redact_text
from crush_trio.config.secrets.known import KnownSecrets
from crush_trio.wire.fields import Json

KNOWN = "known"
PATTERN = "pattern"

Environment = Callable[[], Mapping[str, str]]
"""Returns the variables of the workspace, for the names of secrets."""


@define(eq=False)
class Redactor:
    """Redacts texts and trees of plain values; counts what it removes."""

    secrets: KnownSecrets = field(repr=False)
    environment: Environment = field(repr=False)
    counts: Counter[str] = field(factory=Counter, init=False)
    """How often a secret was removed, by name."""

    def tree(self, value: Json) -> Json:
        """Return *value* without secrets; one that is nested too deeply is left out."""
        try:
            return map_text(value, self.text)
        except RecursionError:
            self.counts[PATTERN] += 1
            return {}

    def text(self, text: str) -> str:
        """Return *text* without secrets."""
        if not text or text == REDACTED:
            return text
        known = self.secrets.redact(text)
        if known != text:
            self._count_known(text, known)
        clean = redact_text(known)
        self.counts[PATTERN] += max(0, clean.count(REDACTED) - known.count(REDACTED))
        return clean

    def _count_known(self, text: str, known: str) -> None:
        removed = max(1, known.count(REDACTED) - text.count(REDACTED))
        for name, value in self.environment().items():
            if value and is_secret_name(name) and (found := text.count(value)):
                self.counts[name] += found
                removed -= found
        self.counts[KNOWN] += max(0, removed)

    @property
    def told(self) -> dict[str, int]:
        """How often a secret was removed, by name; without names that are zero."""
        return {name: count for name, count in sorted(self.counts.items()) if count}
