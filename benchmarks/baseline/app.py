"""The routes that the benchmarks use."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from benchmarks.baseline.agent import Session, Workspace, open_workspace
from benchmarks.baseline.events import Json


class CreateWorkspace(BaseModel):
    """The body of a new workspace."""

    path: str
    client_id: str


class CreateSession(BaseModel):
    """The body of a new session."""

    title: str = ""


class Prompt(BaseModel):
    """The body of a prompt."""

    session_id: str
    prompt: str
    run_id: str = ""


def create_app(*, paced: bool = False) -> FastAPI:  # noqa: C901 - an afternoon's work
    """Return the application."""
    workspaces: dict[str, Workspace] = {}
    clients: list[httpx.AsyncClient] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with httpx.AsyncClient(timeout=None) as client:
            clients.append(client)
            yield

    app = FastAPI(lifespan=lifespan)

    def workspace(wid: str) -> Workspace:
        if wid not in workspaces:
            raise HTTPException(404, "workspace not found")
        return workspaces[wid]

    def session(wid: str, sid: str) -> Session:
        found = workspace(wid).sessions.get(sid)
        if found is None:
            raise HTTPException(404, "session not found")
        return found

    @app.get("/v1/health")
    async def health() -> Response:
        return Response()

    @app.post("/v1/workspaces")
    async def create_workspace(body: CreateWorkspace) -> Json:
        opened = open_workspace(body.path, clients[0], paced=paced)
        workspaces[opened.id] = opened
        return {"id": opened.id, "path": opened.path, "config": opened.config}

    @app.post("/v1/workspaces/{wid}/agent/init")
    async def init(wid: str) -> Response:
        workspace(wid)
        return Response()

    @app.get("/v1/workspaces/{wid}/agent")
    async def agent(wid: str) -> Json:
        busy = any(session.tasks for session in workspace(wid).sessions.values())
        return {"is_ready": True, "is_busy": busy}

    @app.post("/v1/workspaces/{wid}/agent")
    async def post_prompt(wid: str, body: Prompt) -> Response:
        workspace(wid).submit(session(wid, body.session_id), body.prompt, body.run_id)
        return Response(status_code=202)

    @app.post("/v1/workspaces/{wid}/agent/sessions/{sid}/cancel")
    async def cancel(wid: str, sid: str) -> Response:
        workspace(wid).cancel(session(wid, sid))
        return Response()

    @app.post("/v1/workspaces/{wid}/sessions")
    async def create_session(wid: str, body: CreateSession) -> Json:
        made = workspace(wid).create_session(body.title)
        return {"id": made.id, "title": made.title}

    @app.get("/v1/workspaces/{wid}/sessions")
    async def sessions(wid: str) -> list[Json]:
        found = workspace(wid).sessions.values()
        return [each.shown() for each in sorted(found, key=lambda each: -each.updated_at)]

    @app.get("/v1/workspaces/{wid}/sessions/{sid}/messages")
    async def messages(wid: str, sid: str) -> list[Json]:
        return session(wid, sid).messages

    @app.get("/v1/workspaces/{wid}/events")
    async def events(wid: str, client_id: str, form: str = "crush") -> StreamingResponse:
        frames = workspace(wid).events.stream(form)
        return StreamingResponse(frames, media_type="text/event-stream")

    return app
