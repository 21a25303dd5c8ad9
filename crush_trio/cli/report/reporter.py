"""The `Reporter` interface, its values for the start and end of a run, and stop receipts as text.

A reporter gets the pieces of a run as they arrive, and never waits. There is one for a terminal, one
for a pipe, and one for programs.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import orjson
from attrs import field, frozen
from rich.table import Table
from rich.text import Text

from crush_trio.cli.exits import ExitCode
from crush_trio.cli.terminal.signals import Interrupts
from crush_trio.client.follower import RunPiece
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.config.known_providers import DEMO_PROVIDER
from crush_trio.wire.answers import HitView, ReceiptView
from crush_trio.wire.asks import PermissionMode, PermissionPolicy, Refusal
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.messages import ToolCallPart
from crush_trio.wire.runs import RunState, RunView

SHORT: int = 8
"""How many characters of an id are printed."""

_ALWAYS_ASKED: Final = (
    "what touches .git, .crush or start-up files, leads out of the workspace by a link, or is asked "
    "because a rule or a hook says so, is asked under every policy"
)
_AT_TERMINAL: Final = "run it at a terminal to answer"


def short(name: str) -> str:
    """Return a shortened id; commands accept it in the place of the whole."""
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
        parts.append(f"{count(processes, 'process', 'processes')} stopped with it")
    if left := [pid for hit in receipt.hits for pid in hit.left]:
        parts.append(f"could not stop {_processes(left)}")
    parts.append("nothing is left running" if receipt.complete else "something is still running")
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def receipt_table(receipt: ReceiptView) -> Table:
    """Return a receipt as a table, one row per run."""
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
    """Return a number with its noun in singular or plural."""
    return f"{number} {one if number == 1 else many or one + 's'}"


DEMO_HINT = (
    "No model is configured, so the offline demo answers. To use a real one, set a key such as "
    "ANTHROPIC_API_KEY or OPENAI_API_KEY, or describe a provider in crush.json; "
    "crush-trio doctor shows what is configured."
)


@frozen(kw_only=True)
class RunStart:
    """The start of a run: its ids, directory, model and server."""

    session_id: SessionId
    run_id: RunId
    directory: str
    model: SelectedModel
    server: str
    """The address of the server, or `embedded`."""
    import_hint: str = ""
    """What to do about sessions of Crush that are not here; empty if there are none."""

    @property
    def hints(self) -> list[str]:
        """What the user should know before the answer."""
        return [*([DEMO_HINT] if self.demo else []), *filter(None, [self.import_hint])]

    @property
    def model_name(self) -> str:
        """The model as `provider/model`."""
        return f"{self.model.provider}/{self.model.model}"

    @property
    def demo(self) -> bool:
        """Whether the offline demo answers."""
        return self.model.provider == DEMO_PROVIDER


@frozen(kw_only=True)
class RunEnd:
    """The end of a run, and the exit code of the command."""

    run: RunView
    code: int
    seconds: float
    denied: ToolCallPart | None = None
    """The tool call whose refusal ended the run, if one did."""
    refusal: str | None = None
    """Why that call was refused; see `wire.asks.Refusal`."""
    policy: PermissionPolicy = field(factory=PermissionPolicy)
    """The permission policy that the run was sent with."""
    text_is_refusal: bool = False
    """Whether the run's text is that of the refusal, because the model wrote none of its own."""
    receipt: ReceiptView | None = None
    """The receipt of this command's own cancel."""

    @property
    def answer(self) -> str:
        """The text to print; a refusal is printed as an error instead."""
        return "" if self.text_is_refusal else self.run.text

    @property
    def advice(self) -> str:
        """What to do next; empty if the run succeeded."""
        if self.denied is not None:
            return _permission_advice(self.denied, self.refusal, self.policy)
        if self.run.state is RunState.INTERRUPTED:
            return "the server was restarted; run the prompt again"
        return ""


def _permission_advice(call: ToolCallPart, refusal: str | None, policy: PermissionPolicy) -> str:
    """Return how a run can get the permission that it was refused."""
    if refusal == Refusal.RULE:
        return "a permission rule of yours denies it; see crush-trio permissions"
    if _leaves_sandbox(call):
        return f"leaving the sandbox is asked under every policy; {_AT_TERMINAL}"
    listed = {each.partition(":")[0] for each in policy.allow_list}
    asked = refusal == Refusal.ALWAYS_ASKED
    if asked or policy.mode is PermissionMode.ALLOW or call.name in listed:
        return f"{_ALWAYS_ASKED}; {_AT_TERMINAL}"
    return f"allow it with --allow-tool {call.name}, or everything with --policy allow"


def _leaves_sandbox(call: ToolCallPart) -> bool:
    try:
        given = orjson.loads(call.input)
    except orjson.JSONDecodeError:
        return False
    return isinstance(given, dict) and given.get("outside_sandbox") is True


class Reporter(Protocol):
    """Shows what happens in a run."""

    @property
    def interactive(self) -> bool:
        """Whether permissions and questions can be answered here."""
        ...

    def open(self, interrupts: Interrupts) -> AbstractAsyncContextManager[None]:
        """Do what runs beside the run, such as reading keys, for the length of the block."""
        ...

    def opened(self, workspace: RemoteWorkspace) -> None:
        """Set the workspace of the run, to which answers are sent."""
        ...

    def began(self, start: RunStart) -> None:
        """Report the start of the run."""
        ...

    def tell(self, piece: RunPiece) -> None:
        """Report a piece of the run."""
        ...

    def cancelling(self) -> None:
        """Report that this command cancels the run, before the server is told."""
        ...

    def ended(self, end: RunEnd) -> None:
        """Report the end of the run; the last call."""
        ...


def exit_code_of_run(run: RunView, *, denied: bool, timed_out: bool) -> ExitCode:
    """Return the exit code for a run that has ended."""
    match run.state:
        case RunState.CANCELLED:
            return ExitCode.TIMED_OUT if timed_out else ExitCode.CANCELLED
        case RunState.COMPLETED | RunState.FOLDED:
            return ExitCode.DENIED if denied else ExitCode.OK
    return ExitCode.FAILED
