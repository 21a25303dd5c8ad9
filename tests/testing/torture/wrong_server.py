"""A small server of the wire in memory, with faults: each breaks one promise."""

import json
from itertools import count

import h11
import trio
import trio.testing
from attrs import define, field

from crush_trio.testing.torture.kit import TOOL

PACE = 0.02
"""Seconds between two pieces of an answer."""

LATENCY = 0.001
"""Seconds before an answer is sent, so that no two requests have the same time."""

PIECE = 8
"""Words of an answer that come at once."""


@define(eq=False)
class Session:
    id: str
    messages: list = field(factory=list)
    queue: list = field(factory=list)
    active: dict | None = None
    scope: trio.CancelScope | None = None
    poisoned: bool = False


@define(eq=False)
class WrongServer:
    """Serves `dial`; *faults* are names from the tests."""

    native: bool
    faults: set
    nursery: trio.Nursery
    sessions: dict = field(factory=dict)
    log: list = field(factory=list)
    runs: dict = field(factory=dict)
    places: dict = field(factory=dict)
    """How far each stream has been sent."""
    numbers: count = field(factory=lambda: count(1))
    moved: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    async def dial(self, origin):
        ours, theirs = trio.testing.lockstep_stream_pair()
        self.nursery.start_soon(self.serve, ours)
        return theirs

    def name(self, kind):
        return f"{kind}{next(self.numbers)}"

    # ── HTTP ────────────────────────────────────────────────────────────────────────────────────

    async def serve(self, stream):
        http = h11.Connection(h11.SERVER)
        try:
            async with stream:
                while await self.exchange(http, stream):
                    http.start_next_cycle()
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
            pass

    async def exchange(self, http, stream):
        head, body = None, b""
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some(65536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return False
        path, _, _ = head.target.decode().partition("?")
        if path.endswith("/events"):
            await self.stream(http, stream, dict(head.headers))
            return False
        if "drops hang-ups" in self.faults and path.endswith("/agent"):
            with trio.move_on_after(0.05):
                if not await stream.receive_some(1):
                    return False
        status, answer = self.route(head.method.decode(), path, json.loads(body) if body else {})
        await trio.sleep(LATENCY)
        data = b"" if answer is None else json.dumps(answer).encode()
        fields = [("content-length", str(len(data)))]
        sent = http.send(h11.Response(status_code=status, headers=fields))
        sent += http.send(h11.Data(data=data)) + http.send(h11.EndOfMessage())
        await stream.send_all(sent)
        return True

    async def stream(self, http, stream, headers):
        me, place = self.name("stream"), len(self.log)
        known = headers.get(b"last-event-id")
        if known and "forgets places" not in self.faults:
            place = int(known.rpartition(b"-")[2]) + ("skips one" in self.faults)
        fields = [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")]
        head = http.send(h11.Response(status_code=200, headers=fields))
        ready = b"id: b-%d\nevent: ready\ndata: {}\n\n" % place if self.native else b""
        await stream.send_all(head + (http.send(h11.Data(data=ready)) if ready else b""))
        self.places[me] = place
        try:
            while True:
                while (place := self.places[me]) >= len(self.log):
                    await self.moved.park()
                if "ends slow streams" in self.faults and len(self.log) - place > 40:
                    self.faults.discard("ends slow streams")  # once: the reader comes back
                    return
                if "drops the backlog" in self.faults and len(self.log) - place > 40:
                    place = len(self.log) - 1
                frame = self.frame(place)
                await stream.send_all(http.send(h11.Data(data=frame)))
                self.places[me] = place + 1
                self.moved.unpark_all()
        finally:
            del self.places[me]
            self.moved.unpark_all()

    def frame(self, place):
        kind, data = self.log[place]
        if self.native:
            return f"id: b-{place + 1}\nevent: {kind}\ndata: {data}\n\n".encode()
        return f'data: {{"type":"{kind}","payload":{data}}}\n\n'.encode()

    async def publish(self, kind, data):
        self.log.append((kind, json.dumps(data)))
        self.moved.unpark_all()
        await trio.lowlevel.checkpoint()
        while "blocks" in self.faults and any(
            place < len(self.log) - 20 for place in self.places.values()
        ):
            await self.moved.park()

    def route(self, method, path, body):
        parts = path.split("/")
        match method, parts[3:]:
            case "POST", []:
                return (
                    (200, {"id": "w"})
                    if "no workspace" not in self.faults
                    else (400, {"message": "no"})
                )
            case "DELETE" | "GET", ["w"]:
                return 404, {"message": "closed"}
            case "POST", ["w", "sessions"]:
                session = Session(self.name("s"))
                self.sessions[session.id] = session
                return 200, {"id": session.id}
            case "GET", ["w", "sessions", name, "messages"]:
                return 200, self.stored(self.sessions[name])
            case "POST", ["w", "agent"]:
                return self.accept(body)
            case "POST", ["w", "agent", "sessions", name, "cancel"]:
                self.nursery.start_soon(self.cancel, self.sessions[name])
                return 200, None
            case "GET", ["w", "agent", "sessions", name]:
                return 200, {"id": name, "is_busy": self.sessions[name].active is not None}
            case "GET", ["w", "runs", name]:
                return 200, {"state": self.runs[name]}
        return 404, {"message": "not found"}

    def stored(self, session):
        if "stores less" in self.faults:
            return [{**message, "parts": message["parts"][:1]} for message in session.messages]
        return session.messages

    # ── Runs ────────────────────────────────────────────────────────────────────────────────────

    def accept(self, body):
        if "refuses" in self.faults or ("refuses later" in self.faults and len(self.runs) > 2):
            return 429, {"message": "too many prompts"}
        name, session = body["run_id"], self.sessions[body["session_id"]]
        if self.native and name in self.runs and "runs again" not in self.faults:
            return 200, {"repeated": True}
        self.runs[name] = "accepted"
        session.queue.append(body)
        if session.active is None:
            self.next(session)
        return 202, None

    def next(self, session):
        session.active = session.scope = None
        if session.queue:
            last = "reorders" in self.faults
            session.active = session.queue.pop(-1 if last else 0)
            session.scope = trio.CancelScope()
            self.nursery.start_soon(self.run, session, session.active, session.scope)

    async def cancel(self, session):
        if "sticky cancels" in self.faults:
            session.poisoned = True
        if "loses cancels" not in self.faults and session.scope is not None:
            session.scope.cancel()
        if "spares the queue" not in self.faults:
            dropped, session.queue = session.queue, []
            for body in dropped:
                await self.end(body, session, "cancelled")

    async def run(self, session, body, scope):
        state = "cancelled"
        if session.poisoned:
            session.poisoned = False
            scope.cancel()
        with scope:
            await self.say(session, "user", [_text(body["prompt"]), _finish("stop")])
            if body["prompt"] == TOOL:
                await self.tool(session)
            state = await self.answer(session, body["prompt"])
        if scope.cancelled_caught:
            await self.say(session, "assistant", [_finish("canceled")])
        await self.end(body, session, state)
        self.next(session)

    async def answer(self, session, prompt):
        if "fails" in self.faults:
            return "errored"
        words = prompt.split()
        message = await self.say(session, "assistant", [])
        for start in range(0, len(words), PIECE):
            await trio.sleep(PACE)
            message["parts"] = [_text(" ".join(words[: start + PIECE]))]
            await self.publish("message", {"type": "updated", "payload": message})
        message["parts"] = [*message["parts"], _finish("end_turn")]
        await self.publish("message", {"type": "updated", "payload": message})
        return "completed"

    async def tool(self, session):
        if "uses no tools" in self.faults:
            return
        if "asks" in self.faults:
            ask = {"id": "p", "session_id": session.id}
            await self.publish("permission_request", {"type": "created", "payload": ask})
            await trio.sleep_forever()
        data = {"id": self.name("call"), "name": "ls", "input": "{}", "finished": True}
        call = {"type": "tool_call", "data": data}
        result = {"tool_call_id": data["id"], "name": "ls", "content": "", "is_error": False}
        done = [{"type": "tool_result", "data": result}]
        if "result first" in self.faults:
            await self.say(session, "tool", done)
        message = await self.say(session, "assistant", [call])
        if "result first" not in self.faults:
            await self.say(session, "tool", done)
        message["parts"] = [call, _finish("tool_use")]
        await self.publish("message", {"type": "updated", "payload": message})

    async def say(self, session, role, parts):
        message = {"id": self.name("m"), "role": role, "session_id": session.id, "parts": parts}
        session.messages.append(message)
        with trio.CancelScope(shield=True):
            await self.publish("message", {"type": "created", "payload": message})
        return message

    async def end(self, body, session, state):
        name = body["run_id"]
        self.runs[name] = state
        number = int(name.rpartition("-")[2])
        loses = "loses endings" in self.faults and (number % 2 == 0 or "loses all" in self.faults)
        for _ in range(0 if loses else 2 if "ends twice" in self.faults else 1):
            if self.native:
                run = {"id": name, "run_id": name, "state": state, "session_id": session.id}
                await self.publish("run", run)
            else:
                done = {"session_id": session.id, "run_id": name, "message_id": ""}
                done |= {"cancelled": True} if state == "cancelled" else {}
                done |= {"error": "boom"} if state == "errored" else {}
                await self.publish("run_complete", {"type": "updated", "payload": done})


def _text(text):
    return {"type": "text", "data": {"text": text}}


def _finish(reason):
    return {"type": "finish", "data": {"reason": reason, "time": 0}}
