"""The tables of `docs/scale.md`, computed from the constants."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.report import BEGIN, END, replaced
from benchmarks.scale.capacity import (
    ACTIVE,
    IN_WORKSPACE,
    PACE,
    SHARE,
    SIZES,
    TOKENS,
    answer,
    carried,
    need,
    sessions_of,
)
from benchmarks.scale.constants import Constants, Cost

PAGE: Final = Path(__file__).parents[2] / "docs" / "scale.md"
SESSIONS: Final = (1_000, 10_000, 100_000, 1_000_000)
NODES: Final = 1_000

_LEAST: Final = 1e-6
"""Seconds of processor time below which a cost is noise."""

THINGS: Final = {
    "run": "a short run, one at a time",
    "run_together": "a short run, 32 at once",
    "token": "a token, 32 answers at once",
    "session": "a session that is created",
    "lease": "an open workspace, each renewal (5 s)",
    "node": "a node, each renewal (5 s)",
    "forwarded": "a request that is passed on",
}


def section(found: Constants) -> str:
    """Return what stands between the page's markers."""
    parts = [
        f"Measured {found.day}; {found.machine}; PostgreSQL {found.postgres}.",
        _costs(found),
        "### What a PostgreSQL carries",
        f"Half of its processors used. An answer has {TOKENS} tokens, {PACE:g} in a second.",
        _sizes(found),
        "### What many sessions need",
        f"In {ACTIVE:.0%} of the sessions an answer is being written at any moment, read by one client through another node."
        f" {IN_WORKSPACE} sessions are in a workspace, and all workspaces are open. A node is one process and uses"
        f" {SHARE:.0%} of a processor; the databases have {SIZES[2].cores} processors, of which half are used, and"
        f" {SIZES[2].connections} connections.",
        _needs(found),
    ]
    return "\n\n".join(parts) + "\n"


def page(found: Constants, text: str) -> str:
    """Return the page *text* with the tables of *found*."""
    return replaced(text, section(found))


def between_markers(text: str) -> str:
    """Return what stands between the markers of a page."""
    return text.partition(BEGIN)[2].partition(END)[0].strip() + "\n"


def _costs(found: Constants) -> str:
    heads = (
        "",
        "transactions",
        "of these write",
        "log (WAL)",
        "stored",
        "processor of PostgreSQL",
        "processor of the nodes",
    )
    rows = [_cost_row(name, getattr(found, key)) for key, name in THINGS.items()]
    rows.append(_cost_row(f"an answer of {TOKENS} tokens, 32 at once", answer(found)))
    rows.append(("an idle session", "0", "0", "0", "what it has stored", "0", "0"))
    for name, each in (
        ("a reader of an answer, each second", found.reader),
        ("the same through another node", found.reader_forwarded),
    ):
        rows.append((name, "0", "0", "0", "0", "0", _seconds(each)))
    return _table(heads, rows)


def _cost_row(name: str, cost: Cost) -> tuple[str, ...]:
    return (
        name,
        f"{cost.transactions:.2f}",
        f"{cost.writes:.2f}",
        _bytes(cost.wal),
        _bytes(cost.stored),
        _seconds(cost.database),
        _seconds(cost.nodes),
    )


def _sizes(found: Constants) -> str:
    heads = (
        "processors",
        "short runs per second",
        "answers at once",
        "log (WAL) with these",
        "nodes that write these",
        "connections",
        "nodes without PgBouncer",
    )
    rows = []
    for size in SIZES:
        each = carried(found, size)
        rows.append(
            (
                f"{size.cores}",
                _count(each.runs),
                _count(each.answers),
                f"{_bytes(each.wal)}/s",
                f"{each.nodes_busy:,}",
                f"{size.connections}",
                f"{each.nodes_connected}",
            )
        )
    return _table(heads, rows)


def _needs(found: Constants) -> str:
    heads = (
        "sessions",
        "answers at once",
        "prompts per second",
        "nodes",
        "processors of PostgreSQL, fully used",
        "log (WAL)",
        "stored per day",
        "databases",
        "nodes of each",
    )
    size, rows = SIZES[2], []
    for sessions in (*SESSIONS, sessions_of(found, NODES, size)):
        each = need(found, sessions, size)
        rows.append(
            (
                f"{each.sessions:,}",
                _count(each.answers),
                _count(each.prompts),
                f"{each.nodes:,}",
                f"{each.cores:.1f}",
                f"{_bytes(each.wal)}/s",
                _bytes(each.stored),
                f"{each.databases}",
                f"{each.nodes_of_each}",
            )
        )
    return _table(heads, rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _count(value: float) -> str:
    """Return a computed number with two digits: more would claim too much."""
    return f"{float(f'{value:.2g}'):,.0f}"


def _bytes(value: float) -> str:
    for unit, least in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if value >= least:
            return f"{value / least:.3g} {unit}"
    return f"{value:.0f} B"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value >= _LEAST else f"below {_LEAST * 1e3:g} ms"
