"""The client without async, as a script or a notebook would use it: submit, answer, read.

The script needs a server. Usually that is `crush-trio serve`; here it runs in a thread, so that the
example is complete.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from anyio.from_thread import start_blocking_portal

from crush_trio import Address, PermissionRequest, open_server
from crush_trio.client import Asked, SyncWorkspace, TextPiece, open_client_sync


@contextmanager
def server(place: str) -> Iterator[Address]:
    """Serve in a thread during a block."""
    with start_blocking_portal("trio") as portal:
        opened = open_server(f"unix://{place}/socket")
        with portal.wrap_async_context_manager(opened) as [address]:
            yield address


def ask(workspace: SyncWorkspace, prompt: str) -> None:
    """Submit a prompt; allow what it asks for, and print the answer as it comes."""
    session = workspace.sessions.create(prompt)
    run = workspace.submit(prompt, session=session.id)
    for piece in run.stream():
        match piece:
            case Asked(request=PermissionRequest() as request):
                print(f"allowed: {request.tool_name}")
                workspace.permissions.grant(request)
            case TextPiece(text=text):
                print(text, end="")
    print(f"\n{prompt}: {run.wait().state}")


with TemporaryDirectory() as place, server(place) as address, open_client_sync(address) as client:
    with client.open_workspace(place, interactive=True) as workspace, client.timeout(60):
        ask(workspace, "write hello to hello.txt")
    print(Path(place, "hello.txt").read_text("utf-8"))
