"""`MachineSandbox`: the sandbox of this machine, found once per server; and what ran in it.

Finding it starts processes, so it is done when the first command, hook or server needs the answer, and
not when the server starts. All workspaces of a server share the answer.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from enum import StrEnum

import trio
from attrs import define, field

from crush_trio.tools.sandbox.confinement import SandboxKind


class Approval(StrEnum):
    """Why a command of the agent was allowed to run, which decides what it may touch."""

    UNASKED = "unasked"
    """It only reads, so no permission was needed: everything is read-only, without network."""
    APPROVED = "approved"
    """Permission was asked for and given."""
    ALLOWED = "allowed"
    """The configuration lets commands run in the sandbox without asking."""
    OUTSIDE = "outside"
    """Permission was given to leave the sandbox."""


async def _find() -> SandboxKind:
    from crush_trio.tools.sandbox.probe import find_sandbox  # with the code that starts processes

    return await find_sandbox()


@define(eq=False)
class MachineSandbox:
    """The sandbox that works on this machine. `found` is None until it was looked for.

    *found* is given where nothing has to be tried, such as in tests.
    """

    found: SandboxKind | None = None
    _look: Callable[[], Awaitable[SandboxKind]] = field(default=_find, repr=False)
    commands: Counter[tuple[SandboxKind, Approval]] = field(factory=Counter, init=False)
    """The commands of agents that were started, by the sandbox that held and why they could run."""
    _looking: trio.Lock = field(factory=trio.Lock, init=False, repr=False)

    async def find(self) -> SandboxKind:
        """Return the sandbox; the first caller tries what there is, the others wait for it.

        If the first caller is cancelled, the next one tries.
        """
        if self.found is not None:
            await trio.lowlevel.checkpoint()
            return self.found
        async with self._looking:
            if self.found is None:
                self.found = await self._look()
            return self.found


def no_sandbox() -> MachineSandbox:
    """Return a machine without a sandbox; nothing is tried."""
    return MachineSandbox(SandboxKind.NONE)
