"""What models call the tools of MCP servers: `mcp_<server>_<tool>`.

Providers take letters, digits, `_` and `-` only, and 64 of them. And the plain form can be read in two
ways: `mcp_a_b_c` is the tool `c` of a server `a_b`, or `b_c` of one that is called `a`. A name decides
who is asked and what a person has allowed, so it belongs to one tool for good: in the plain form to the
server with the longer name, whether that is connected or not. Where the plain form will not do, the
name ends in a few digits that are made of both names and of nothing else; a plain form that ends like
that will not do either.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256
from typing import Final

LONGEST: Final = 64
_DIGITS: Final = 10
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")
_MARK: Final = re.compile(rf"_[0-9a-f]{{{_DIGITS}}}$")


def named(
    tools: Iterable[tuple[str, str]], servers: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Return the name of each tool, with its server and what that calls it; no name comes twice.

    *servers* are all servers that there could be.
    """
    taken = set[str]()
    for server, tool in sorted(set(tools)):
        name = _plain(server, tool, servers) or _marked(server, tool)
        if name not in taken:
            taken.add(name)
            yield name, server, tool


def _plain(server: str, tool: str, servers: Collection[str]) -> str:
    """Return the plain form, or nothing if it will not do."""
    name = f"mcp_{server}_{tool}"
    longer = (each for each in servers if len(each) > len(server))
    if any(name.startswith(f"mcp_{each}_") for each in longer):
        return ""
    unfit = len(name) > LONGEST or _FOREIGN.search(name) or _MARK.search(name)
    return "" if unfit else name


def _marked(server: str, tool: str) -> str:
    digits = sha256(f"{server}\0{tool}".encode()).hexdigest()[:_DIGITS]
    readable = _FOREIGN.sub("_", f"mcp_{server}_{tool}")
    return f"{readable[: LONGEST - 1 - _DIGITS]}_{digits}"
