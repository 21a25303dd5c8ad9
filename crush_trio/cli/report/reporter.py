"""What there is to report about one run, and the seam behind which it is written down.

A reporter is told things as they happen and never waits. Which one is used depends on who reads:
a person at a terminal, a pipe, or a program.

Stop receipts for people: what a cancel hit, how long it took, and what is left.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from attrs import frozen
from rich.table import Table
from rich.text import Text

from crush_trio.agent.asks.permissions import DENIED, FORBIDDEN, UNANSWERED, UNATTENDED
from crush_trio.cli.exits import ExitCode
from crush_trio.cli.terminal.signals import Interrupts
from crush_trio.client.follower import RunPiece
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.config.models import DEMO_PROVIDER
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.messages import ToolCallPart
from crush_trio.wire.runs import HitView, ReceiptView, RunState, RunView

SHORT: int = 8
"""How many characters of an id are enough to tell it from others."""


def short(name: str) -> str:
    """Return the beginning of an id; every command takes it for the whole."""
    return name[:SHORT]


def merged(receipts: Iterable[ReceiptView]) -> ReceiptView:
    """Return several receipts as one."""
    found = list(receipts)
    return ReceiptView(
        complete=all(each.complete for each in found),
        hits=tuple(hit for each in found for hit in each.hits),
    )


def summary(receipt: ReceiptView) -> str:
    """Return a receipt as one sentence."""
    if not receipt.hits:
        return "Nothing was running."
    ended = [hit.ended for hit in receipt.hits if hit.ended is not None]
    stopped = ended.count(RunState.CANCELLED)
    parts = [f"stopped {count(stopped, 'run')} in {_longest(receipt.hits):.2f} s"]
    if others := len(ended) - stopped:
        parts.append(f"{count(others, 'run')} ended otherwise")
    processes = sum(len(hit.processes) for hit in receipt.hits)
    if processes:
        parts.append(f"{count(processes, 'process', 'processes')} ended with it")
    if left := [pid for hit in receipt.hits for pid in hit.left]:
        parts.append(f"could not stop {_processes(left)}")
    parts.append("nothing is left running" if receipt.complete else "something is still running")
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def receipt_table(receipt: ReceiptView) -> Table:
    """Return a receipt as a table, one line for each run."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("Run", "Session", "Was", "Ended", "After", "Processes stopped", ""):
        table.add_column(heading)
    for hit in receipt.hits:
        table.add_row(
            short(hit.run_id or hit.id),
            short(hit.session_id),
            hit.state.value,
            _ended(hit),
            "" if hit.seconds is None else f"{hit.seconds:.2f} s",
            _numbers(hit.processes) or "none",
            Text(f"left: {_numbers(hit.left)}", "bold red") if hit.left else "",
        )
    return table


def _numbers(pids: Iterable[int]) -> str:
    return ", ".join(map(str, pids))


def _processes(pids: Sequence[int]) -> str:
    return f"{'process' if len(pids) == 1 else 'processes'} {_numbers(pids)}"


def _ended(hit: HitView) -> Text:
    if hit.ended is None:
        return Text("still running", "bold red")
    style = "green" if hit.ended is RunState.CANCELLED else "yellow"
    return Text(hit.ended.value + (f": {hit.error}" if hit.error else ""), style)


def _longest(hits: Iterable[HitView]) -> float:
    return max((hit.seconds or 0.0 for hit in hits), default=0.0)


def count(number: int, one: str, many: str = "") -> str:
    """Return how many there are of something, in words that agree."""
    return f"{number} {one if number == 1 else many or one + 's'}"


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
