"""Owners that are not what they say: a listener of the test, which the rows name as the owner of a workspace."""

from contextlib import asynccontextmanager
from functools import partial

import trio
from attrs import define, field

from tests.server.cluster.nodes import SITE, open_node_server, project
from tests.store.postgres.server import connect

BOOT = "00000000-0000-4000-8000-00000000dead"

_NODE = """
    INSERT INTO nodes (id, boot, address, site, host, pid, version, started_at, expires_at)
    VALUES (%(a)s, %(boot)s, %(a)s, %(site)s, 'elsewhere', 1, '0', 0,
        clock_timestamp() + make_interval(secs => %(s)s))
"""
_LEASE = """
    UPDATE leases SET node_id = %(boot)s, epoch = epoch + 1,
        expires_at = clock_timestamp() + make_interval(secs => %(s)s)
"""
_RUN = """
    INSERT INTO runs (workspace, n, id, run_id, session_id, kind, state, seq, boot_id, prompt, accepted_at, started_at)
    SELECT workspace, 1, 'its-id', 'r1', s.id, 'prompt', 'active', 1, b.id, 'hello', 1, 1
    FROM sessions AS s JOIN boots AS b USING (workspace)
"""


@define(eq=False)
class Ghost:
    """Listens at the address of the owner, and answers each request with *answer*, or not at all."""

    answer: bytes
    heard: list[bytes] = field(factory=list)
    """What was sent to it, one for each connection."""

    async def hear(self, stream):
        async with stream:
            self.heard.append(bytes(await stream.receive_some()))
            if self.answer:
                await stream.send_all(self.answer)


@asynccontextmanager
async def open_haunted_node(url, folder, *, answer=b"", seconds=2.0):
    """Run a node beside a ghost that owns a workspace for so many seconds; yield the workspace there, and the ghost.

    The workspace has one session, with an active run `r1`.
    """
    async with open_node_server(url, folder) as former:
        place = await former.create(project(folder))
        await place.session()
    ghost = Ghost(answer)
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, ghost.hear, 0, host="127.0.0.1")
        [listener] = await nursery.start(serve)
        port = listener.socket.getsockname()[1]
        async with open_node_server(url, folder) as node:
            with connect(url) as database:
                values = {"a": f"tcp://127.0.0.1:{port}", "boot": BOOT, "site": SITE, "s": seconds}
                database.execute(_NODE, values)
                database.execute(_LEASE, values)
                database.execute(_RUN, values)
            yield node.at(place), ghost
        nursery.cancel_scope.cancel()
