"""Stop receipts for people: what a cancel hit, how long it took, and what is left."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from crush_trio.wire.native import HitView, ReceiptView, RunState

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
