"""What follows from the constants: what a database of a given size carries, and what many sessions need.

Plain arithmetic. A load is a number of answers that are being written at any moment; each begins with a
prompt, has so many tokens and ends. Databases and nodes are not loaded beyond a share of their processors.
"""

from math import ceil
from typing import Final

from attrs import frozen

from benchmarks.scale.constants import Constants, Cost

RENEWAL: Final = 5.0
"""Seconds between two renewals, with leases of 15 s."""

SHARE: Final = 0.5
"""The share of a processor that may be used, of the database and of the nodes."""

TOKENS: Final = 500
"""Tokens of an answer."""

PACE: Final = 50.0
"""Tokens of an answer in a second."""

ACTIVE: Final = 0.02
"""The share of all sessions in which an answer is being written at any moment."""

IN_WORKSPACE: Final = 10
"""Sessions of a workspace; all workspaces are open."""

DAY: Final = 86400


@frozen(kw_only=True)
class Size:
    """A database server."""

    cores: int
    connections: int
    """Direct connections; a PgBouncer in front of it has as many to the nodes as it likes."""


SIZES: Final = (
    Size(cores=2, connections=100),
    Size(cores=8, connections=200),
    Size(cores=16, connections=400),
    Size(cores=64, connections=800),
)


@frozen(kw_only=True)
class Carried:
    """What a database of a size carries; each number by itself, with nothing else on it."""

    size: Size
    runs: float
    """Short runs in a second."""
    answers: float
    """Answers that are being written at the same time."""
    wal: float
    """Bytes of the write-ahead log in a second, with so many answers."""
    nodes_connected: int
    """Nodes that have their connections without a PgBouncer."""
    nodes_busy: int
    """Nodes that it takes to write so many answers."""


@frozen(kw_only=True)
class Need:
    """What a number of sessions needs."""

    sessions: int
    answers: float
    """Answers that are being written at the same time."""
    prompts: float
    """Prompts in a second."""
    nodes: int
    cores: float
    """Processors of all databases, fully used."""
    wal: float
    """Bytes of the write-ahead log in a second."""
    stored: float
    """Bytes that are stored in a day, if it goes on like this all day."""
    databases: int
    """How many databases of a size."""
    nodes_of_each: int
    """Nodes at each of them."""


def answer(found: Constants) -> Cost:
    """Return the cost of an answer among others, from its prompt to its ending."""
    run, token = found.run_together, found.token
    names = ("transactions", "writes", "wal", "stored", "database", "nodes")
    return Cost(**{n: getattr(run, n) + TOKENS * getattr(token, n) for n in names})


def answers_each_second(answers: float) -> float:
    """Return how many answers begin in a second if so many are being written at any moment."""
    return answers * PACE / TOKENS


def carried(found: Constants, size: Size) -> Carried:
    """Return what a database of *size* carries."""
    usable, each = size.cores * SHARE, answer(found)
    answers = usable / (answers_each_second(1) * each.database)
    return Carried(
        size=size,
        runs=usable / found.run_together.database,
        answers=answers,
        wal=answers_each_second(answers) * each.wal,
        nodes_connected=size.connections // found.connections,
        nodes_busy=ceil(answers_each_second(answers) * each.nodes / SHARE),
    )


def need(found: Constants, sessions: int, size: Size) -> Need:
    """Return what so many sessions need, with databases of *size*.

    Each session is also read by one client, through a node that does not own its workspace.
    """
    answers, each = sessions * ACTIVE, answer(found)
    rate = answers_each_second(answers)
    nodes = ceil((rate * each.nodes + answers * found.reader_forwarded) / SHARE)
    renewed = sessions / IN_WORKSPACE / RENEWAL
    cores = rate * each.database + renewed * found.lease.database
    cores += nodes / RENEWAL * found.node.database
    databases = max(
        ceil(cores / (size.cores * SHARE)), ceil(nodes * found.connections / size.connections)
    )
    return Need(
        sessions=sessions,
        answers=answers,
        prompts=rate,
        nodes=nodes,
        cores=cores,
        wal=rate * each.wal + renewed * found.lease.wal + nodes / RENEWAL * found.node.wal,
        stored=rate * each.stored * DAY,
        databases=databases,
        nodes_of_each=ceil(nodes / databases),
    )


def sessions_of(found: Constants, nodes: int, size: Size) -> int:
    """Return how many sessions so many nodes carry, in steps of a thousand."""
    low, high = 0, 10**6
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if need(found, middle * 1000, size).nodes <= nodes else (low, middle)
        )
    return low * 1000
