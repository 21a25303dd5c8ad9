"""The ES module in Node against a real server: `scenarios.mjs` has the client's side."""

import shutil
from pathlib import Path
from subprocess import STDOUT

import pytest
import trio

import crush_trio
from crush_trio.testing import Gate
from crush_trio.testing.server.server import WrittenTurns
from crush_trio.testing.server.turns import Do, Pause, Say, Sleep
from tests.client.test_over_sockets import ANYWHERE, serving

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.needs("node")]

HERE = Path(__file__).parent
MODULE = (Path(crush_trio.__file__).parent / "web" / "client.js").as_uri()
TOKEN = "let-me-in"


def turns():
    gate = Gate()

    async def open_gate(_run):
        await trio.lowlevel.checkpoint()
        gate.open()

    streamed = [Say("Grüß"), Sleep(0.1), Say(" Gott 👍"), Sleep(0.1), Say(" done")]
    words = [step for number in range(299) for step in (Say(f"{number} "), Sleep(0.002))]
    return WrittenTurns(
        {
            "go": streamed,
            "wait": [Say("Hm"), Pause(Gate())],
            "in two parts": [Say("Grüß"), Pause(gate), Say(" Gott")],
            "open the gate": [Do(open_gate), Say("done")],
            "long 300": [*words, Say("299")],
        }
    )


async def play(name, folder, bound=None):
    """Play a scenario; a failure is its error and where it was raised."""
    url = "" if bound is None else f"http://127.0.0.1:{bound.port}"
    command = [shutil.which("node"), HERE / "scenarios.mjs", MODULE, name, url, folder, TOKEN]
    with trio.fail_after(30):
        ran = await trio.run_process(
            [*map(str, command)], capture_stdout=True, stderr=STDOUT, check=False
        )
    assert ran.returncode == 0, ran.stdout.decode()
    assert ran.stdout == b"done\n"


@pytest.mark.parametrize(
    "name",
    ["prompt", "cancel", "reconnect", "resync", "slow_reader", "split", "three_clients", "token"],
)
async def test_scenario_against_a_scripted_agent(name, tmp_path):
    async with serving(ANYWHERE, turns(), token=TOKEN) as bound:
        await play(name, tmp_path, bound)


async def test_asks_of_a_real_agent_are_answered(tmp_path):
    async with serving(ANYWHERE, token=TOKEN) as bound:
        await play("asks", tmp_path, bound)
    assert (tmp_path / "greeting.txt").read_text() == "hello"


async def test_a_server_that_is_silent_broken_or_gone(tmp_path):
    await play("bad_server", tmp_path)
