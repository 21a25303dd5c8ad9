"""How patient a backend is: every window and limit in one value.

Nothing in this package looks at the process's environment. A program that wants the overrides hands
the mapping to `BackendSettings.from_environment`, once, and everything else gets the value.
"""

import re
from collections.abc import Mapping
from typing import Final, Self

from attrs import frozen

from crush_trio.backend.claims import CREATE_GRACE, DETACH_GRACE, Graces

DETACH_VARIABLE: Final = "CRUSH_SERVER_DETACH_GRACE"
IDLE_VARIABLE: Final = "CRUSH_SERVER_IDLE_TIMEOUT"

_WHOLE_SECONDS: Final = re.compile(r"\+?[0-9]{1,18}", re.ASCII)


@frozen(kw_only=True)
class BackendSettings:
    """Times in seconds (contract E.1). `math.inf` means never."""

    create_grace: float = CREATE_GRACE
    detach_grace: float = DETACH_GRACE
    idle_linger: float = 60.0
    """How long a backend without workspaces waits for the next create before it asks to end."""
    retired_for: float = 3600.0
    """How long a client that said goodbye is refused; longer than any create stays on the wire."""
    close_limit: float = 30.0
    """How long a workspace may take to close before what it waits for is cancelled (L32)."""

    @property
    def graces(self) -> Graces:
        """The windows that a claim lives in without a stream."""
        return Graces(create=self.create_grace, detach=self.detach_grace)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Take the overrides from *environment*: whole seconds, 0 for at once.

        A value that is anything else, a negative one included, counts as absent.
        """
        default = cls()
        return cls(
            detach_grace=whole_seconds(environment, DETACH_VARIABLE, default.detach_grace),
            idle_linger=whole_seconds(environment, IDLE_VARIABLE, default.idle_linger),
        )


def whole_seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    """Return the seconds that a variable holds; *default* if it holds anything else."""
    text = environment.get(name, "")
    return float(text) if _WHOLE_SECONDS.fullmatch(text) else default
