"""The parser and the messages of the ES module against streams recorded from the event log."""

import base64
import random
import re
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

import crush_trio
from crush_trio.events import EventLog, Form, GrowingMessage, MessageChange
from crush_trio.testing.server.client import Replica
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role
from tests.store.stores import call

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

HERE = Path(__file__).parent
WEB = Path(crush_trio.__file__).parent / "web"
WORDS = ["so", " ", "Grüß", "👍🏽", "日本", "\n", '"quoted"', "\\", "\u2028", "e\u0301"]


def recorded(seed):
    """Return the stream of a message that grows at random, and what a reader knows in the end."""
    chance, log = random.Random(seed), EventLog("3f9c")
    cursor = log.cursor(Form.NATIVE)
    head = Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SessionId("s"))
    growing = GrowingMessage(head)
    log.publish(MessageChange(change=EventType.CREATED, view=growing.view(1)))
    for step in range(12):
        match chance.randrange(8):
            case 0 | 1 | 2:
                growing.append_text(chance.choice(WORDS))
            case 3 | 4:
                growing.append_reasoning(chance.choice(WORDS), started_at=3)
            case 5:
                growing.close_reasoning(finished_at=4, signature=chance.choice(WORDS))
            case 6:
                growing.put(call(chance.choice("ab"), finished=chance.random() < 0.5))
            case 7:
                growing.reset()
        if chance.random() < 0.7:
            view = growing.view(step)
            log.publish(MessageChange(change=EventType.UPDATED, view=view, plain=True))
    growing.put(FinishPart(reason=FinishReason.END_TURN, time=9))
    log.publish(MessageChange(change=EventType.UPDATED, view=growing.view(20)))
    stream = cursor.take().encode(Form.NATIVE)
    replica = Replica()
    replica.feed(stream)
    return stream, replica


@pytest.mark.needs("node")
def test_every_split_of_the_bytes_gives_the_same_messages():
    streams = [recorded(seed) for seed in range(6)]
    lines = [
        orjson.dumps(
            {
                "stream": base64.b64encode(stream).decode(),
                "messages": replica.messages,
                "position": replica.last_id,
            }
        )
        for stream, replica in streams
    ]
    node = shutil.which("node")
    ran = subprocess.run(
        [node, HERE / "frames.mjs", (WEB / "stream.js").as_uri()],
        input=b"\n".join(lines),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert int(ran.stdout) == sum(len(stream) + 1 for stream, _ in streams)


TYPED = """\
import { Client } from "%s/client.js";

const workspace = await new Client({ url: "http://localhost" }).open("/srv/project");
const run = await workspace.submit("hello", { session: "s", whenBusy: "reject" });
const text: string = await run.text();
for await (const event of workspace.events()) {
  if (event.type === "run") event.run.state satisfies string;
  // @ts-expect-error: only some events have a message
  event.message;
}
// @ts-expect-error: a session is needed
await workspace.submit(text, {});
export {};
"""


@pytest.mark.needs("tsc")
def test_the_types_of_the_page_are_sound(tmp_path):
    options = {
        **dict.fromkeys(["noEmit", "allowJs", "checkJs", "strict"], True),
        "target": "es2022",
        "module": "nodenext",
        "lib": ["es2022", "dom", "dom.iterable", "dom.asynciterable"],
        "types": [],
        "paths": {"/web/*": [f"{WEB}/*"]},  # the addresses of the server
    }
    project = tmp_path / "tsconfig.json"
    project.write_bytes(
        orjson.dumps({"compilerOptions": options, "include": [f"{WEB}/page/**/*.js"]})
    )
    ran = subprocess.run(
        [shutil.which("tsc"), "-p", project], capture_output=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stdout.decode()


def test_modules_of_the_page_are_short():
    lengths = {path.name: len(path.read_text().splitlines()) for path in WEB.rglob("*.js")}
    page = {path.name for path in (WEB / "page").rglob("*.js")}
    assert [name for name in page if lengths[name] >= 300] == []


def test_only_one_module_of_the_page_parses_html():
    sinks = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|parseFromString|document\.write|eval\("
    )
    found = {p.name for p in (WEB / "page").rglob("*.js") if sinks.search(p.read_text())}
    assert found == {"rendered.js"}


@pytest.mark.needs("tsc")
def test_the_types_are_sound_and_reach_typescript(tmp_path):
    program = tmp_path / "program.mts"
    program.write_text(TYPED % WEB)
    options = ["--noEmit", "--allowJs", "--checkJs", "--strict", "--target", "es2022"]
    modules = ["--module", "nodenext", "--lib", "es2022,dom,dom.iterable,dom.asynciterable"]
    ran = subprocess.run(
        [shutil.which("tsc"), *options, *modules, *sorted(WEB.glob("*.js")), program],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout.decode()
