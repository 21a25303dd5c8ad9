"""The page that says what of the wire is served, and what of the contract is not built yet."""

import sys
from typing import Final

from crush_trio.server.catalogue import CATALOGUE, ROUTES
from crush_trio.server.extensions import EXTENSIONS
from crush_trio.server.route import REAL, Route

_INTRODUCTION: Final = """\
# What of the wire is served

Every route of the `/v1` interface is there and has its exact shape. This page says which of them do
their work, and which still answer with a value that clients understand but that says nothing: an
empty one, or a fixed one. It ends with the items of the contract that are not built. It is printed
by `python -m crush_trio.server.coverage`; a test fails when the two differ.
"""

POSTPONED: Final = {
    "D18": "the titles of two single providers' errors (hyper, Copilot); theirs are titled as all others",
    "H9": "a shell of our own with a `jq`; commands are run by the system's",
    "H agentic_fetch, sourcegraph, web_fetch, web_search": "not offered to models",
    "I.2": "Bedrock, Vertex and hyper; OAuth and AWS sign-in; finding out models; downloading a catalogue",
    "I7": "built-in skills; there are none, and `view` knows no `crush:`. The rest of the rule holds",
    "I.4 MCP": "logging in by OAuth (a header or a token can be configured), channels, Docker's gateway",
}
"""What of D to I is not built, by item or by row of its table, and what there is instead."""


def coverage_markdown() -> str:
    """Return `docs/wire-coverage.md`."""
    done = sum(route.state == REAL for route in ROUTES)
    total = f"{done} of {len(ROUTES)} routes are real.\n"
    tables = [_table(name, group) for name, group in CATALOGUE.items()]
    return "\n".join(
        [_INTRODUCTION, total, *tables, _table("Extensions", EXTENSIONS), _postponed()]
    )


def _table(name: str, group: tuple[Route, ...]) -> str:
    rows = [f"| {route.method} `{route.path}` | {route.state} |\n" for route in group]
    return "".join([f"## {name}\n\n| Route | State |\n|---|---|\n", *rows])


def _postponed() -> str:
    rows = [f"| {items} | {what} |\n" for items, what in POSTPONED.items()]
    return "".join(["## Not built yet\n\n| Items | What |\n|---|---|\n", *rows])


if __name__ == "__main__":
    sys.stdout.write(coverage_markdown())
