"""What there is to report about one run, and the seam behind which it is written down.

A reporter is told things as they happen and never waits. Which one is used depends on who reads:
a person at a terminal, a pipe, or a program.
"""

from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from attrs import frozen

from crush_trio.agent.permissions import DENIED, FORBIDDEN, UNANSWERED, UNATTENDED
from crush_trio.cli.exits import ExitCode
from crush_trio.cli.interrupts import Interrupts
from crush_trio.client.following import RunPiece
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.config.demo import DEMO_PROVIDER
from crush_trio.wire.catalog import SelectedModel
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.messages import ToolCallPart
from crush_trio.wire.native import ReceiptView, RunState, RunView

DEMO_HINT = (
    "No model is configured, so the offline demo answers. To use a real one, set a key such as "
    "ANTHROPIC_API_KEY or OPENAI_API_KEY, or describe a provider in crush.json; "
    "crush-trio doctor says what was found."
)


_REFUSALS: Final = (
    DENIED,
    FORBIDDEN,
    UNATTENDED.partition("{")[0],
    UNANSWERED.partition("{")[0],
)


def is_refusal(text: str) -> bool:
    """Whether a tool answered that it was not allowed to do something."""
    return text.startswith(_REFUSALS)


@frozen(kw_only=True)
class Start:
    """A run has been submitted."""

    session_id: SessionId
    run_id: RunId
    directory: str
    model: SelectedModel
    server: str
    """Where the server is, or `embedded`."""

    @property
    def model_name(self) -> str:
        """The model as one would write it in a command."""
        return f"{self.model.provider}/{self.model.model}"

    @property
    def demo(self) -> bool:
        """Whether no real model answers."""
        return self.model.provider == DEMO_PROVIDER


@frozen(kw_only=True)
class End:
    """A run has ended, and what this command makes of it."""

    run: RunView
    code: int
    seconds: float
    denied: ToolCallPart | None = None
    """The call that was not allowed, if that ended the run."""
    receipt: ReceiptView | None = None
    """What our own cancel hit."""

    @property
    def answer(self) -> str:
        """What the run has to say; that it was denied something is said elsewhere."""
        text = self.run.text
        return "" if self.denied is not None and is_refusal(text) else text

    @property
    def advice(self) -> str:
        """What to do next; empty if nothing is wrong."""
        if self.denied is not None:
            return (
                f"allow it with --allow-tool {self.denied.name}, or everything with --policy allow"
            )
        if self.run.state is RunState.INTERRUPTED:
            return "the server was restarted; run the prompt again"
        return ""


class Reporter(Protocol):
    """Writes down what happens in a run."""

    @property
    def interactive(self) -> bool:
        """Whether a person is here who can be asked."""
        ...

    def open(self, interrupts: Interrupts) -> AbstractAsyncContextManager[None]:
        """Do whatever has to be done beside the run, for the length of the block."""
        ...

    def opened(self, workspace: RemoteWorkspace) -> None:
        """Take note of where the run will be; what it asks is answered there."""
        ...

    def began(self, start: Start) -> None:
        """Report that the run was submitted."""
        ...

    def tell(self, piece: RunPiece) -> None:
        """Report what happened in it."""
        ...

    def ended(self, end: End) -> None:
        """Report how it ended; the last call."""
        ...


def exit_code_of_run(run: RunView, *, denied: bool, timed_out: bool) -> ExitCode:
    """Return the exit code for a run that ended like this."""
    match run.state:
        case RunState.CANCELLED:
            return ExitCode.TIMED_OUT if timed_out else ExitCode.CANCELLED
        case RunState.COMPLETED | RunState.FOLDED:
            return ExitCode.DENIED if denied else ExitCode.OK
    return ExitCode.FAILED
