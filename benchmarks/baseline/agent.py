"""Workspaces, sessions and runs, in memory: a task per run, and a lock per session for their order."""

import asyncio  # noqa: TID251 - the baseline is an asyncio program
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from uuid import uuid4  # noqa: TID251 - nothing has to be replayed here

import httpx
from attrs import define, field

from benchmarks.baseline.events import Broadcast, Json, growth_event, message_event, run_event

PACE: Final = 0.033
"""Seconds between two events of an answer, for the variant that paces them."""


@define(eq=False)
class Session:
    """A conversation."""

    id: str
    title: str
    messages: list[Json] = field(factory=list, init=False)
    lock: asyncio.Lock = field(factory=asyncio.Lock, init=False)
    tasks: "set[asyncio.Task[None]]" = field(factory=set, init=False)
    created_at: int = field(factory=lambda: _now(), init=False)
    updated_at: int = field(factory=lambda: _now(), init=False)

    def shown(self) -> Json:
        """Return the session as clients see it."""
        return {
            "id": self.id,
            "parent_session_id": "",
            "title": self.title,
            "message_count": len(self.messages),
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "summary_message_id": "",
            "cost": 0,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "is_busy": bool(self.tasks),
            "attached_clients": 0,
        }


@define(eq=False)
class Workspace:
    """A directory, its sessions and its clients."""

    id: str
    path: str
    config: Json
    http: httpx.AsyncClient
    paced: bool
    events: Broadcast = field(factory=Broadcast, init=False)
    sessions: dict[str, Session] = field(factory=dict, init=False)

    def create_session(self, title: str) -> Session:
        """Create a session."""
        session = Session(str(uuid4()), title)
        self.sessions[session.id] = session
        return session

    def submit(self, session: Session, prompt: str, run_id: str) -> None:
        """Start a run; it waits for the earlier ones of its session."""
        task = asyncio.create_task(self._run(session, prompt, run_id or str(uuid4())))
        session.tasks.add(task)
        task.add_done_callback(session.tasks.discard)

    def cancel(self, session: Session) -> None:
        """Cancel every run of a session."""
        for task in list(session.tasks):
            task.cancel()

    async def _run(self, session: Session, prompt: str, run_id: str) -> None:
        answer: Json | None = None
        state, error = "completed", ""
        try:
            async with session.lock:
                self.events.publish(run_event(session.id, run_id, "active"))
                self._say(session, "user", prompt)
                answer = self._say(session, "assistant", "")
                await self._converse(session, answer)
        except asyncio.CancelledError:
            state, error = "cancelled", "run cancelled"
        except Exception as exc:  # noqa: BLE001 - whatever it is, the run has ended
            state, error = "errored", str(exc)
        finally:
            text = "" if answer is None else self._finish(answer, state)
            self.events.publish(run_event(session.id, run_id, state, text, error))

    def _say(self, session: Session, role: str, text: str) -> Json:
        message: Json = {
            "id": str(uuid4()),
            "role": role,
            "session_id": session.id,
            "parts": [{"type": "text", "data": {"text": text}}],
            "created_at": _now(),
        }
        session.updated_at = _now()
        session.messages.append(message)
        self.events.publish(message_event("created", message))
        return message

    def _finish(self, answer: Json, state: str) -> str:
        finish = {
            "type": "finish",
            "data": {"reason": "end_turn" if state == "completed" else state},
        }
        answer["parts"] = [*answer["parts"], finish]
        self.events.publish(growth_event(dict(answer), [{"index": 1, "part": finish}]))
        return str(answer["parts"][0]["data"]["text"])

    # ── The model ───────────────────────────────────────────────────────────────────────────────

    async def _converse(self, session: Session, answer: Json) -> None:
        """Stream the model's answer to all clients."""
        text, pending, next_event = "", "", 0.0
        async for piece in self._ask(session.messages[:-1]):
            text, pending = text + piece, pending + piece
            answer["parts"] = [{"type": "text", "data": {"text": text}}]
            now = time.monotonic()
            if not self.paced or now >= next_event:
                self._grow(answer, pending)
                pending, next_event = "", now + PACE
        if pending:
            self._grow(answer, pending)

    def _grow(self, answer: Json, piece: str) -> None:
        self.events.publish(growth_event(dict(answer), [{"index": 0, "append": piece}]))

    async def _ask(self, messages: list[Json]) -> AsyncIterator[str]:
        body = {
            "model": self.config["models"]["large"]["model"],
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [
                {"role": m["role"], "content": m["parts"][0]["data"]["text"]} for m in messages
            ],
        }
        provider = self.config["providers"][self.config["models"]["large"]["provider"]]
        headers = {"authorization": f"Bearer {provider['api_key']}"}
        url = f"{provider['base_url']}/chat/completions"
        async with self.http.stream("POST", url, json=body, headers=headers) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    piece = _piece(json.loads(line[6:]))
                    if piece:
                        yield piece  # noqa: ASYNC119 - as in most asyncio programs


def _now() -> int:
    return int(time.time())  # noqa: TID251 - nothing has to be replayed here


def _piece(chunk: Json) -> str:
    choices = chunk.get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


def open_workspace(path: str, http: httpx.AsyncClient, *, paced: bool) -> Workspace:
    """Return the workspace of a directory."""
    config = json.loads((Path(path) / "crush.json").read_text(encoding="utf-8"))
    return Workspace(str(uuid4()), path, config, http, paced)
