"""A prompt, a permission and a cancel, with the client that openapi-python-client makes.

Runs in the generator's own environment, beside the package `generated`. Prints what it saw as JSON.
"""

import json
import sys
from collections.abc import Iterator

from generated import AuthenticatedClient
from generated.api.agent import submit_prompt
from generated.api.extensions import get_run
from generated.api.permissions import answer_permission
from generated.api.runs_of_a_session import cancel_session
from generated.api.sessions import create_session, list_messages
from generated.api.system import get_health
from generated.api.workspaces import create_workspace
from generated.models import (
    AgentMessage,
    Error,
    GrantRequest,
    NativePermissionRequestEvent,
    NativeRunEvent,
    PermissionAction,
    PermissionReference,
    ReceiptView,
    Repeated,
    Resolved,
    RunState,
    RunView,
    Session,
    SessionCreate,
    TextPart,
    WorkspaceRequest,
    WorkspaceView,
)
from httpx import Response

Event = NativePermissionRequestEvent | NativeRunEvent
KNOWN: dict[str, type[NativePermissionRequestEvent] | type[NativeRunEvent]] = {
    "permission_request": NativePermissionRequestEvent,
    "run": NativeRunEvent,
}


def events(response: Response) -> Iterator[Event]:
    """Read the events of a native stream that this program knows."""
    frame: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            key, _, value = line.partition(": ")
            frame[key] = value
        elif frame:
            if cls := KNOWN.get(frame["event"]):
                yield cls.from_dict({**frame, "data": json.loads(frame["data"])})
            frame = {}


def main(url: str, token: str, directory: str) -> None:
    with AuthenticatedClient(base_url=url, token=token) as client:
        seen: dict[str, object] = {"health": get_health.sync_detailed(client=client).status_code}
        client_id = "00000000-0000-4000-8000-000000000001"
        request = WorkspaceRequest(path=directory, client_id=client_id)
        workspace = create_workspace.sync(client=client, body=request)
        assert isinstance(workspace, WorkspaceView)
        wid = workspace.id
        session = create_session.sync(wid, client=client, body=SessionCreate(title="generated"))
        assert isinstance(session, Session)
        query = {"client_id": client_id, "form": "native", "interactive": "1"}
        http = client.get_httpx_client()
        with http.stream("GET", f"/v1/workspaces/{wid}/events", params=query) as stream:
            happening = events(stream)

            def until(state: RunState) -> None:
                for event in happening:
                    if isinstance(event, NativeRunEvent) and event.data.state == state:
                        return

            prompt = AgentMessage(
                session_id=session.id, prompt="write", run_id="one", interactive=True
            )
            first = submit_prompt.sync_detailed(wid, client=client, body=prompt)
            again = submit_prompt.sync(wid, client=client, body=prompt)
            assert isinstance(again, Repeated)
            seen["submit"] = [first.status_code, first.parsed, again.repeated]

            asked = next(e for e in happening if isinstance(e, NativePermissionRequestEvent))
            answer = GrantRequest(
                permission=PermissionReference(id=asked.data.payload.id),
                action=PermissionAction.ALLOW,
            )
            resolved = answer_permission.sync(wid, client=client, body=answer)
            assert isinstance(resolved, Resolved)
            seen["permission"] = [asked.data.payload.tool_name, resolved.resolved]
            until(RunState.COMPLETED)
            messages = list_messages.sync(wid, session.id, client=client)
            assert isinstance(messages, list)
            texts = [p.data.text for m in messages for p in m.parts if isinstance(p, TextPart)]
            seen["text"] = texts[-1]

            prompt = AgentMessage(session_id=session.id, prompt="wait", run_id="two")
            submit_prompt.sync_detailed(wid, client=client, body=prompt)
            until(RunState.ACTIVE)
            receipt = cancel_session.sync(wid, session.id, client=client, receipt=True)
            assert isinstance(receipt, ReceiptView)
            seen["cancel"] = [receipt.complete, [hit.ended for hit in receipt.hits]]
            until(RunState.CANCELLED)
        run = get_run.sync(wid, "two", client=client)
        assert isinstance(run, RunView)
        missing = get_run.sync(wid, "none", client=client)
        assert isinstance(missing, Error)
        seen["runs"] = [run.state, missing.code]
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
