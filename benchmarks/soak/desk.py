"""Requests of a soak's clients: sends them, checks the answers, and records them in the ledger.

Every answer goes through `Desk.judge`, which has the allowed answers.
"""

import base64
import time
from collections.abc import Iterable
from itertools import count
from typing import Final

import trio
from attrs import define, field

from benchmarks.driver.frames import Json
from benchmarks.driver.http import Reply
from benchmarks.soak.ledger import Ledger, Prompt, Stop, Talk, Violation, check_sequence
from benchmarks.soak.server import Line, Site

ACCEPT_LIMIT: Final = 10.0
"""Seconds in which a prompt is answered: `Limits.accept`, and as much for a busy machine."""

BUSY: Final = frozenset({"session_busy"})
DISK: Final = frozenset(
    {
        "acceptance_not_stored",
        "no_room_for_prompt",
        "disk_full",
        "disk_failed",
        "store_busy",
        "store_slow",
    }
)
MOVING: Final = frozenset({"server_shutting_down", "workspace_closing", "workspace_not_found"})
ENDED: Final = frozenset({"run_not_queued", "run_not_found"})

_numbers: Final = count(1)


@define(eq=False)
class Desk:
    """What the clients of one workspace share."""

    site: Site
    ledger: Ledger
    workspace: int
    talks: list[Talk] = field(factory=list, init=False)
    """Sessions that are in use."""

    @property
    def base(self) -> str:
        """The path of the workspace in the server that runs now."""
        return self.site.bases[self.workspace]

    def judge(self, what: str, reply: Reply, good: int, codes: Iterable[str] = ()) -> str:
        """Return "" if *reply* has the status *good*, or the code of an allowed refusal; else raise."""
        if reply.status == good:
            return ""
        try:
            said = reply.json()
            code, message = said["code"], said["message"]
        except (ValueError, KeyError, TypeError):
            raise Violation(
                f"{what}: {reply.status} without code and sentence: {reply.body!r}"
            ) from None
        moving = time.monotonic() < self.site.changing + 10 or not self.site.up.is_set()
        known = {*codes, *(DISK if self.site.troubled else ()), *(MOVING if moving else ())}
        if code not in known or not message:
            raise Violation(f"{what}: {reply.status} {code}: {message}")
        return str(code)

    async def talk(self, line: Line, *, ordered: bool) -> Talk:
        """Create a session."""
        while True:
            await self.site.up.wait()
            reply = await line.ask("POST", f"{self.base}/sessions", {"title": "soak"})
            if reply is not None and not self.judge("create session", reply, 200):
                talk = self.ledger.talk(reply.json()["id"], self.workspace, ordered=ordered)
                self.talks = [*self.talks[-20:], talk]
                self.site.counts.add("sessions")
                return talk
            await trio.sleep(0.2)

    # ── Prompts ─────────────────────────────────────────────────────────────────────────────────

    async def prompt(
        self,
        line: Line,
        talk: Talk,
        words: str,
        policy: str = "",
        *,
        named: bool = True,
        attached: bytes = b"",
    ) -> Prompt:
        """Send a prompt; one whose answer was lost is sent again, if it has a run id."""
        tag = f"w{self.workspace}-{next(_numbers)}"
        await self.site.up.wait()
        prompt = Prompt(tag, talk, [f"{words} #{tag}"], named, time.monotonic(), policy)
        self.site.counts.add("prompts")
        stop = self.ledger.send(prompt)
        body = _body(prompt, attached)
        await self._submit(line, prompt, body, stop)
        while prompt.verdict == "unknown" and named:
            self.site.counts.add("prompts sent again")
            await self._submit(line, prompt, body, stop)
        return prompt

    async def _submit(
        self, line: Line, prompt: Prompt, body: dict[str, object], stop: Stop | None
    ) -> None:
        site = self.site
        await site.up.wait()
        reply = await line.ask("POST", f"{self.base}/agent", body)
        now = time.monotonic()
        if reply is None:
            self.ledger.settle(prompt, "unknown", now, stop)
            return
        site.counts.accepting.append(reply.seconds)
        if reply.seconds > ACCEPT_LIMIT:
            raise Violation(f"{prompt.tag} was answered after {reply.seconds:.1f} s")
        busy = BUSY if prompt.policy == "reject" else ()
        good = 200 if reply.status == 200 and prompt.verdict == "unknown" else 202
        code = self.judge(f"prompt {prompt.tag}", reply, good, busy)
        if code and prompt.verdict == "unknown" and code in MOVING | DISK:
            await trio.sleep(
                0.2
            )  # an earlier attempt may have been accepted; only a 200 or a 202 tells
            return
        if code:
            site.counts.add("refused")
            site.counts.refused[f"{reply.status} {code}"] += 1
        else:
            site.counts.add("accepted")
            site.counts.add(f"accepted: {prompt.policy or 'enqueue'}")
            if reply.body:
                site.counts.add("repetitions recognised")
        self.ledger.settle(prompt, code or "accepted", now, stop)

    async def repeat(self, line: Line, prompt: Prompt) -> None:
        """Send an accepted prompt again: the server must recognise it."""
        body = {"session_id": prompt.talk.id, "prompt": prompt.original, "run_id": prompt.tag}
        reply = await line.ask("POST", f"{self.base}/agent", body)
        edited = () if prompt.texts == [prompt.original] else ("run_id_taken",)
        if reply is None or self.judge(f"repetition of {prompt.tag}", reply, 200, edited):
            return
        if not reply.body or not reply.json().get("repeated"):
            raise Violation(f"{prompt.tag} was accepted twice")
        self.site.counts.add("repetitions recognised")

    # ── Stops ───────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, line: Line, talk: Talk, *, receipt: bool = False) -> bool:
        """Cancel a session; return whether that was answered."""
        stop = self.ledger.stop(talk, "cancel", time.monotonic())
        before = [prompt for prompt in talk.prompts if prompt.accepted and not prompt.state]
        query = "?receipt=1" if receipt else ""
        target = f"{self.base}/agent/sessions/{talk.id}/cancel{query}"
        reply = await line.ask("POST", target)
        if reply is None or self.judge("cancel", reply, 200):
            return False
        self.site.counts.add("cancels")
        self.ledger.stopped(stop, before, time.monotonic())
        if receipt:
            self._read_receipt(reply)
        return True

    async def cancel_active(self, line: Line, talk: Talk) -> None:
        """Cancel the active run of a session, and keep its queue."""
        stop = self.ledger.stop(talk, "cancel of the active run", time.monotonic())
        target = f"{self.base}/agent/sessions/{talk.id}/cancel?queue=keep&receipt=1"
        reply = await line.ask("POST", target)
        if reply is None or self.judge("cancel", reply, 200):
            return
        stop.answered = time.monotonic()
        self.site.counts.add("cancels that keep the queue")
        for hit in reply.json()["hits"]:
            self._check_kept(hit, stop)
        self._read_receipt(reply)

    def _check_kept(self, hit: Json, stop: Stop) -> None:
        """Check that a queued run was hit only because something else had withdrawn it."""
        prompt = self.ledger.prompts.get(hit.get("run_id") or "")
        if prompt is None or hit["state"] != "queued" or hit.get("ended") != "cancelled":
            return
        stops = [other for other in self.ledger.stops_of(prompt) if other is not stop]
        if not any(other.may_hit(prompt) for other in stops):
            raise Violation(f"a cancel that keeps the queue hit {prompt.tag}, which waited in it")

    async def cancel_run(self, line: Line, prompt: Prompt, *, receipt: bool = False) -> bool:
        """Cancel one run; return whether that was answered."""
        stop = self.ledger.stop_one(prompt, "cancel", time.monotonic())
        query = "?receipt=1" if receipt else ""
        reply = await line.ask("POST", f"{self.base}/runs/{prompt.tag}/cancel{query}")
        known = () if prompt.accepted else ("run_not_found",)
        if reply is None or self.judge(f"cancel of {prompt.tag}", reply, 200, known):
            return False
        self.site.counts.add("cancels")
        self.ledger.stopped(stop, [prompt], time.monotonic())
        if receipt:
            self._read_receipt(reply)
        return True

    def _read_receipt(self, reply: Reply) -> None:
        receipt = reply.json()
        self.site.counts.add("receipts")
        if not receipt["complete"] and not self.site.troubled:
            raise Violation(f"a receipt that is not complete: {reply.body[:1000]!r}")
        for hit in receipt["hits"]:
            prompt = self.ledger.prompts.get(hit.get("run_id") or "")
            before = hit["state"] in {"queued", "accepted"}
            if prompt is not None and before and hit.get("ended") == "cancelled":
                self.ledger.withdrawn(prompt, f"its cancel met it as {hit['state']}")
                self.site.counts.add("prompts withdrawn for certain")

    async def clear(self, line: Line, talk: Talk) -> None:
        """Clear the queue of a session."""
        stop = self.ledger.stop(talk, "clear", time.monotonic())
        reply = await line.ask("POST", f"{self.base}/agent/sessions/{talk.id}/prompts/clear")
        if reply is not None and not self.judge("clear", reply, 200):
            stop.answered = time.monotonic()
            self.site.counts.add("queue edits")

    async def remove(self, line: Line, prompt: Prompt) -> None:
        """Take a prompt out of its queue."""
        stop = self.ledger.stop_one(prompt, "remove", time.monotonic())
        target = f"{self.base}/agent/sessions/{prompt.talk.id}/queue/{prompt.tag}"
        reply = await line.ask("DELETE", target)
        if reply is None:
            return
        if self.judge(f"removal of {prompt.tag}", reply, 200, ENDED):
            stop.void = True
            return
        self.site.counts.add("queue edits")
        self.ledger.stopped(stop, [prompt], time.monotonic())
        self.ledger.withdrawn(prompt, "it was removed from the queue")
        self.site.counts.add("prompts withdrawn for certain")

    async def edit(self, line: Line, prompt: Prompt, words: str | None, index: int | None) -> None:
        """Change the text or the place of a waiting prompt, or both."""
        body: dict[str, object] = {}
        if words is not None:
            prompt.texts.append(f"{words} #{prompt.tag}")
            body["prompt"] = prompt.text
        if index is not None:
            body["index"] = index
        target = f"{self.base}/agent/sessions/{prompt.talk.id}/queue/{prompt.tag}"
        reply = await line.ask("PATCH", target, body)
        if reply is None:
            return
        code = self.judge(f"edit of {prompt.tag}", reply, 200, ENDED)
        if not code:
            self.site.counts.add("queue edits")
        if words is not None and not code:
            prompt.texts[:] = [prompt.text]
        elif words is not None and code in ENDED:
            prompt.texts.pop()

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────

    async def look(self, line: Line, prompt: Prompt) -> None:
        """Read one run, and compare it with what the streams said before."""
        known, accepted = prompt.state, prompt.accepted
        reply = await line.ask("GET", f"{self.base}/runs/{prompt.tag}")
        absent = () if accepted else ("run_not_found",)
        if reply is None or self.judge(f"GET run {prompt.tag}", reply, 200, absent):
            return
        state = reply.json()["state"]
        if known and state != known:
            raise Violation(f"{prompt.tag} is {state}, and a stream said {known} before")

    async def look_at_queue(self, line: Line, talk: Talk) -> None:
        """Read a queue; if it is never edited, it must be in the order of acceptance."""
        reply = await line.ask("GET", f"{self.base}/agent/sessions/{talk.id}/queue")
        if reply is None or self.judge("GET queue", reply, 200) or not talk.ordered:
            return
        names = [item.get("run_id", "") for item in reply.json()]
        waiting = [self.ledger.prompts[name] for name in names if name]
        check_sequence(f"the queue of {talk.id}", waiting)

    async def look_at(self, line: Line, target: str) -> None:
        """Read something of the workspace that must exist."""
        reply = await line.ask("GET", f"{self.base}{target}")
        if reply is not None:
            self.judge(f"GET {target}", reply, 200)


def _body(prompt: Prompt, attached: bytes) -> dict[str, object]:
    body: dict[str, object] = {"session_id": prompt.talk.id, "prompt": prompt.text}
    if prompt.named:
        body["run_id"] = prompt.tag
    if prompt.policy:
        body["when_busy"] = prompt.policy
    if prompt.text.startswith("shell"):
        body["permissions"] = {"mode": "allow"}
    if attached:
        file = {"file_path": "a.bin", "file_name": "a.bin", "mime_type": "application/octet-stream"}
        body["attachments"] = [{**file, "content": base64.b64encode(attached).decode()}]
    return body
