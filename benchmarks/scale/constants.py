"""`Constants`: what one thing of each kind costs the database and the nodes; kept in `constants.json`."""

from pathlib import Path
from typing import Final, Self

import orjson
from attrs import asdict, fields_dict, frozen

KEPT: Final = Path(__file__).with_name("constants.json")
"""The constants that `docs/scale.md` is computed from."""


@frozen(kw_only=True)
class Cost:
    """The cost of one thing."""

    transactions: float
    """Of these, `writes` change something; the others only read."""
    writes: float
    wal: float
    """Bytes of the write-ahead log, without full-page images."""
    stored: float
    """Bytes that stay in tables and indexes, without dead rows."""
    database: float
    """Seconds of processor time of PostgreSQL."""
    nodes: float
    """Seconds of processor time of the nodes."""

    def less(self, other: Self, times: float) -> Self:
        """Return this cost without that of so many of the *other*; nothing is below zero."""
        own, theirs = asdict(self), asdict(other)
        return type(self)(**{name: max(0.0, own[name] - times * theirs[name]) for name in own})

    def share(self, count: float) -> Self:
        """Return the cost of one of *count*."""
        return type(self)(**{name: value / count for name, value in asdict(self).items()})


@frozen(kw_only=True)
class Constants:
    """What was measured in one run."""

    machine: str
    day: str
    postgres: str
    connections: int
    """Connections to the database that a node has at most."""
    node: Cost
    """One renewal of a node without workspaces."""
    lease: Cost
    """What each open workspace adds to a renewal."""
    session: Cost
    """Creating a session; an idle one costs nothing after that but what it has stored."""
    run: Cost
    """A short run, one at a time."""
    run_together: Cost
    """A short run among as many at once as the nodes were given: commits are shared."""
    token: Cost
    """A token of an answer among others at once, without the rest of its run."""
    reader: float
    """Seconds of processor time of a node for each second that a client reads an answer as it is written."""
    reader_forwarded: float
    """The same through another node, both nodes together."""
    forwarded: Cost
    """A request that reads nothing from the store, sent to a node that does not own the workspace."""

    def save(self, path: Path = KEPT) -> None:
        """Write them as JSON."""
        path.write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2) + b"\n")

    @classmethod
    def load(cls, path: Path = KEPT) -> Self:
        """Read what `save` has written."""
        found = orjson.loads(path.read_bytes())
        costs = [name for name, each in fields_dict(cls).items() if each.type is Cost]
        return cls(**{**found, **{name: Cost(**found[name]) for name in costs}})
