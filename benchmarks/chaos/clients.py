"""Clients of the cluster: each request, and each event stream, goes to a node that is chosen at random.

They do what docs/events.md and docs/http.md tell clients to do: they send a prompt again under its run id until
it is answered, read on from the last event id, and read a message again if a resync left it open.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson
import trio
from attrs import define, evolve, field

from benchmarks.chaos.cluster import TOKEN
from benchmarks.chaos.nodes import Node
from benchmarks.driver.stage import client_id
from benchmarks.soak.ledger import Violation
from crush_trio.client import open_client
from crush_trio.client.http import passes
from crush_trio.errors import CrushError
from crush_trio.net.address import Origin
from crush_trio.net.client import HttpClient, Request, open_http_client
from crush_trio.net.dial import Dialer, ViaProxy
from crush_trio.net.errors import NetworkError
from crush_trio.net.sse import SseDecoder, SseEvent
from crush_trio.testing.torture.view import View
from crush_trio.wire.ids import RunId

ANSWER_LIMIT: Final = 30.0
"""Seconds in which some node must give an answer that counts."""

ONE_LIMIT: Final = 3.0
"""Seconds after which another node is asked: this one may be suspended."""

CONNECT_LIMIT: Final = 1.0
MOST: Final = 16 * 2**20

TRY_AGAIN: Final = frozenset({409, 421, 502, 503, 504})
"""Statuses after which a client asks again; only the codes below may come with them."""

TEMPORARY: Final = frozenset(
    {
        "forward_lost",
        "not_owner",
        "owner_unreachable",
        "owned_elsewhere",
        "server_shutting_down",
        "store_busy",
        "store_locked",
        "store_slow",
        "store_unreachable",
        "lease_lost",
        "workspace_closing",
        "workspace_not_found",
        "acceptance_not_stored",
        "store_read_only",
        "store_failed",
    }
)


@define(eq=False)
class Round:
    """What the clients of one round share."""

    random: random.Random
    http: HttpClient = field(repr=False)
    path: str
    """The directory of the workspace."""
    nodes: Sequence[Node]
    counts: Counter[str]
    via: Callable[[], Sequence[Node]] | None = field(default=None, init=False)
    """The nodes that clients may choose, if not all."""
    id: str = field(default="", init=False)
    prompts: list["Prompt"] = field(factory=list, init=False)
    changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    """Unparked when a reader has learned something, and when a prompt was answered."""
    answered: list[tuple[float, str]] = field(factory=list, init=False)
    """When each request was answered, and by which start of which node."""

    @property
    def base(self) -> str:
        """The path of the workspace."""
        return f"/v1/workspaces/{self.id}"

    def node(self) -> Node:
        """Return a node for a request."""
        return self.random.choice(self.via() if self.via is not None else self.nodes)

    def request(
        self, node: Node, method: str, target: str, body: object = None, **headers: str
    ) -> Request:
        """Return a request to a node."""
        kind = {} if body is None else {"content-type": "application/json"}
        return Request(
            method=method,
            origin=node.origin,
            target=target,
            headers={"authorization": f"Bearer {TOKEN}", **kind, **headers},
            body=b"" if body is None else orjson.dumps(body),
            connect_within=CONNECT_LIMIT,
        )

    async def until(self, what: str, done: Callable[[], bool], limit: float = ANSWER_LIMIT) -> None:
        """Wait until *done*, which is looked at when something has changed; raise `Violation` if late."""
        with trio.move_on_after(limit):
            while not done():
                await self.changed.park()
            return
        raise Violation(f"{what}: not within {limit:g} s")

    async def refuse(self, node: Node, what: str, status: int, body: bytes) -> str:
        """Note a refusal; raise `Violation` for one that no client could be expected to repeat."""
        try:
            code = orjson.loads(body).get("code", "")
        except (ValueError, AttributeError):
            code = ""
        self.counts[f"refused: {status} {code}"] += 1
        if code not in TEMPORARY:
            raise Violation(f"{what} at {node.start_name}: {status} {body[:300]!r}")
        await trio.lowlevel.checkpoint()
        return str(code)


@define(eq=False)
class Prompt:
    """A prompt, and what its sender knows."""

    tag: str
    session: str
    text: str
    accepted: bool = field(default=False, init=False)
    """Whether it was answered with 202 (or 200, for one that was sent again)."""


@define(eq=False)
class Client:
    """A client of the workspace, with an id of its own."""

    round: Round
    id: str = field(factory=client_id)

    async def tell(
        self, method: str, target: str, body: object = None, good: Sequence[int] = (200, 202)
    ) -> Any:  # noqa: ANN401
        """Ask one node after another until one answers; return the JSON of its answer."""
        last = "nothing"
        with trio.move_on_after(ANSWER_LIMIT):
            while True:
                found = await self.once(self.round.node(), method, target, body, good)
                if found.get("status", 0) in good:
                    return found.get("body")
                last = found["last"]
                await trio.sleep(self.round.random.uniform(0.02, 0.1))
        what = f"{method} {target}"
        raise Violation(f"{what}: no node has answered within {ANSWER_LIMIT:g} s; at last {last}")

    async def once(
        self, node: Node, method: str, target: str, body: object, good: Sequence[int]
    ) -> dict[str, Any]:
        """Ask one node once; return its answer, or what was wrong."""
        shared, request = self.round, self.round.request(node, method, target, body)
        try:
            with trio.move_on_after(ONE_LIMIT):
                async with shared.http.open(request) as response:
                    data, status = await response.read(MOST), response.status
                if status in good:
                    shared.answered.append((time.time(), node.start_name))  # noqa: TID251 - the database's clock
                    return {"status": status, "body": orjson.loads(data) if data else None}
                code = await shared.refuse(node, f"{method} {target}", status, data)
                if code == "workspace_not_found":
                    await self.once_created(node)
                return {"last": f"{status} {code} of {node.start_name}"}
        except NetworkError as error:
            shared.counts["connections lost"] += 1
            return {"last": f"{error} at {node.start_name}"}
        shared.counts["requests without an answer"] += 1
        return {"last": f"no answer of {node.start_name} in {ONE_LIMIT:g} s"}

    async def once_created(self, node: Node) -> None:
        """Ask one node to open the workspace for this client."""
        found = await self.once(node, "POST", "/v1/workspaces", self.opening, (200,))
        self._check(found.get("body"))

    async def create(self) -> None:
        """Have the workspace opened for this client, by whichever node."""
        self._check(await self.tell("POST", "/v1/workspaces", self.opening))
        init = {"interactive": False}
        await self.tell("POST", f"{self.round.base}/agent/init", init)

    @property
    def opening(self) -> object:
        """The body of a request that opens the workspace for this client."""
        return {"path": self.round.path, "client_id": self.id}

    def _check(self, opened: Any) -> None:  # noqa: ANN401
        if opened is None:
            return
        if self.round.id and opened["id"] != self.round.id:
            raise Violation(f"the id of the workspace was {self.round.id}, and is {opened['id']}")
        self.round.id = opened["id"]

    async def leave(self) -> None:
        """Give up the claim, if a node answers at once."""
        target = f"{self.round.base}?client_id={self.id}"
        await self.once(self.round.node(), "DELETE", target, None, (200,))


@define(eq=False)
class Submitter(Client):
    """Sends prompts in a session of its own."""

    name: str = field(kw_only=True)
    session: str = field(default="", init=False)

    async def begin(self) -> None:
        """Make the session."""
        made = await self.tell("POST", f"{self.round.base}/sessions", {"title": self.name})
        self.session = made["id"]

    async def say(self, number: int, *, words: int, pause: int) -> Prompt:
        """Send a prompt until it is accepted; its answer has so many words, ms apart."""
        tag = f"{self.name}-{number}"
        prompt = Prompt(tag, self.session, f"drip {words} {pause} #{tag}")
        self.round.prompts.append(prompt)
        body = {"session_id": self.session, "run_id": tag, "prompt": prompt.text}
        await self.tell("POST", f"{self.round.base}/agent", body, (200, 202))
        prompt.accepted = True
        self.round.counts["prompts accepted"] += 1
        self.round.changed.unpark_all()
        return prompt


@define(eq=False)
class Reader(Client):
    """Reads the native event stream, from any node, on from where it was cut."""

    view: View = field(factory=lambda: View(native=True), init=False)
    attached: trio.Event = field(factory=trio.Event, init=False)
    connections: int = field(default=0, init=False)
    told: list[str] = field(factory=list, init=False)
    """What it was told of runs, for people."""
    through: Node | None = field(default=None, init=False)
    """The node whose stream it reads now."""
    _visiting: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def reconnect(self) -> None:
        """Leave the present stream, and open another one."""
        self._visiting.cancel()

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            with trio.CancelScope() as self._visiting:
                await self._visit(self.round.node())
            self.through = None
            await trio.sleep(self.round.random.uniform(0.01, 0.05))

    async def _visit(self, node: Node) -> None:
        shared, view = self.round, self.view
        resume = {"last-event-id": view.place} if view.place else {}
        target = f"{shared.base}/events?client_id={self.id}&form=native"
        request = shared.request(node, "GET", target, **resume)
        try:
            with trio.move_on_after(ONE_LIMIT) as scope:
                async with shared.http.open(request) as response:
                    if response.status != 200:
                        data = await response.read(MOST)
                        code = await shared.refuse(node, "an event stream", response.status, data)
                        if code == "workspace_not_found":
                            await self.once_created(node)
                        return
                    decoder = SseDecoder(MOST)
                    while data := await response.receive():
                        for event in decoder.feed(data):
                            if event.name == "ready":
                                scope.deadline = float("inf")
                                self._begun(node)
                            self._apply(node, event)
                        shared.changed.unpark_all()
        except NetworkError:
            shared.counts["streams cut"] += 1
        else:
            if scope.cancelled_caught:
                shared.counts["streams without an answer"] += 1

    def _apply(self, node: Node, event: SseEvent) -> None:
        """Apply an event; a violation says what the reader was told before."""
        if event.name in {"ready", "run", "resync"}:
            said = f"{node.start_name} {event.id} {event.name} {event.data.decode()}"
            self.told.append(f"{trio.current_time():.2f} {said[:600]}")
        try:
            self.view.apply(event)
        except Violation as violation:
            told = "\n  ".join(self.told)
            raise Violation(f"{violation}; it was told\n  {told}") from violation

    def _begun(self, node: Node) -> None:
        self.connections += 1
        self.through = node
        self.attached.set()
        self.round.answered.append((time.time(), node.start_name))  # noqa: TID251 - the database's clock
        self.round.changed.unpark_all()

    def knows(self, prompts: Sequence[Prompt]) -> bool:
        """Whether it was told how each of these prompts ended."""
        return all(prompt.tag in self.view.endings for prompt in prompts)


@define(eq=False)
class Program:
    """A program that uses the client of this package. Its connections lead to any node, as behind a load balancer."""

    round: Round
    ended: dict[str, str] = field(factory=dict, init=False)
    """How its runs ended, as the client said."""

    async def dial(self, origin: Origin) -> trio.abc.Stream | ViaProxy:
        """Connect to a node that is chosen at random; *origin* is that of the load balancer."""
        return await Dialer()(evolve(origin, port=self.round.node().port))

    async def run(self, prompts: int, task_status: "trio.TaskStatus[None]") -> None:
        """Send prompts one after another and wait for each; it is started when it has a session."""
        shared = self.round
        async with (
            open_client("tcp://127.0.0.1:1", token=TOKEN, environ={}, dial=self.dial) as client,
            client.open_workspace(shared.path) as workspace,
        ):
            session = await workspace.sessions.create("of the client")
            task_status.started()
            for number in range(1, prompts + 1):
                prompt = Prompt(f"c-{number}", session.id, f"drip 20 10 #c-{number}")
                shared.prompts.append(prompt)
                name = RunId(prompt.tag)
                while not prompt.accepted:
                    try:
                        await workspace.submit(prompt.text, session=session.id, run_id=name)
                        prompt.accepted = True
                    except CrushError as error:  # it was refused for now, and is the same run again
                        if not passes(error):
                            raise
                        shared.counts[f"refused: the client, {error.code}"] += 1
                        await trio.sleep(0.1)
                shared.counts["prompts accepted"] += 1
                self.ended[prompt.tag] = (await workspace.run(name).wait()).state.value


def open_http() -> Any:  # noqa: ANN401
    """Open the connections of the clients of a round."""
    return open_http_client(idle_most=4)
