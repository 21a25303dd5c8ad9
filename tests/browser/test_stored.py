"""The page shows what is stored: what a hostile model wrote, and very long transcripts."""

import json
from urllib.parse import quote

import orjson
import pytest
import trio

from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import Role, TextPart, ToolCallPart, ToolResultPart
from tests.browser.driving import MARKS, page_server, play
from tests.store.stores import END, STOP, message, session, text, thought

pytestmark = MARKS

CODE = "globalThis.pwned = 1"
ATTACKS = [
    f"<script>{CODE}</script>",
    f'<img src=x onerror="{CODE}">',
    f'<svg onload="{CODE}"></svg>',
    f"[a link](javascript:{CODE.replace(' ', '')})",
    f"![an image](http://127.0.0.1:1/x.png)<iframe srcdoc='<script>parent.{CODE}</script>'></iframe>",
    f"```html\n<script>{CODE}</script>\n```",
    f'`"><script>{CODE}</script>`',
    f'| <b onclick="{CODE}">a</b> | b |\n|---|---|\n| <style>*{{display:none}}</style> | </td></tr></table><script>{CODE}</script> |',
    f"<a href=\"data:text/html,<script>{CODE}</script>\">x</a> <base href='http://127.0.0.1:1/'>",
]


def store(folder, changes):
    """Put *changes* into the data of a project before a server opens it."""
    data = folder / "project" / ".crush"
    data.mkdir(parents=True)

    async def write():
        async with open_sqlite_store(data) as opened:
            for start in range(0, len(changes), 500):
                await opened.commit(*changes[start : start + 500])

    trio.run(write)


def hostile():
    script = ATTACKS[0]
    path = f'"><img src=x onerror="{CODE}">.py'
    arguments = {"file_path": path, script: script, "content": "\n".join(ATTACKS)}
    edit = {"old_content": "a\n", "new_content": "\n".join([*ATTACKS, ""])}
    yield session("s", title=f"{script}{ATTACKS[1]}")
    yield message("u", text(f"{script} {ATTACKS[1]}"), STOP, role=Role.USER)
    for number, attack in enumerate(ATTACKS):
        yield message(f"a{number}", thought(attack), TextPart(text=attack), END)
    for name in ("edit", "bash", "view", "todos", f"mcp_{script}"):
        call = ToolCallPart(
            id=ToolCallId(f"c-{name}"),
            name=name,
            input=json.dumps({**arguments, "command": script, "todos": [{"content": script}]}),
            finished=True,
        )
        result = ToolResultPart(
            tool_call_id=call.id,
            name=name,
            content="\n".join(ATTACKS),
            metadata=orjson.dumps({**edit, "output": script} if name == "edit" else {}).decode(),
        )
        yield message(f"t-{name}"[:20], call, END)
        yield message(f"r-{name}"[:20], result, STOP, role=Role.TOOL)
    picture = ToolResultPart(
        tool_call_id=ToolCallId("c-p"),
        name="view",
        content="",
        data="PHN2Zz4=",
        mime_type="image/svg+xml",
    )
    yield message("p", ToolCallPart(id=ToolCallId("c-p"), name="view", finished=True), END)
    yield message("q", picture, STOP, role=Role.TOOL)


def long():
    yield session("s", title="a long one")
    for number in range(10_000):
        role = Role.ASSISTANT if number % 2 else Role.USER
        words = f"message {number} " * (1 + number % 30)
        yield message(f"m{number}", text(words), END, role=role, at=1000 + number)


@pytest.mark.parametrize(("name", "changes"), [("hostile", hostile), ("long_transcript", long)])
def test_scenario(name, changes, tmp_path):
    store(tmp_path, [*changes()])
    with page_server(tmp_path) as server:
        play(name, server, path="/w/unknown/s/s", query=f"?dir={quote(str(server.project))}")
