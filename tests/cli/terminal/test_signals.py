"""Signals that mean stop: the first one asks, the second one does not."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from crush_trio.cli.terminal.signals import Interrupts, interruptible

ROOT = Path(__file__).parents[3]

PROGRAM = """
import trio
from crush_trio.cli.terminal.signals import interruptible

async def work(interrupts):
    interrupts.before_leaving(lambda: print("put back", flush=True))
    with interrupts.reacting({reaction}):
        print("ready", flush=True)
        try:
            await trio.sleep_forever()
        finally:
            print("cleaned up", flush=True)

raise SystemExit(trio.run(interruptible, work))
"""


def program(reaction):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(reaction=reaction)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.slow
def test_the_second_signal_ends_whoever_does_not_react_to_the_first():
    with program("lambda: print('told', flush=True)") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "told\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "put back\n", "nothing else gets a say"
        assert process.wait(30) == -signal.SIGINT


@pytest.mark.slow
def test_a_terminal_that_is_gone_says_so_twice_and_ends_nobody():
    with program("lambda: print('told', flush=True)") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "told\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "put back\n"
        assert process.wait(30) == -signal.SIGTERM


async def test_work_ends_with_its_own_code():
    async def work(interrupts):
        await trio.lowlevel.checkpoint()
        assert interrupts.number is None
        return 7

    assert await interruptible(work) == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_cancels_work_that_has_no_other_wish(number):
    async def work(interrupts):
        interrupts.receive(number)
        await trio.sleep_forever()

    assert await interruptible(work) == 128 + number


async def test_a_reaction_is_called_at_once_if_the_signal_has_come_before():
    told = []

    async def work(interrupts):
        with interrupts.reacting(lambda: told.append("outer")):
            interrupts.receive(signal.SIGINT)
            with interrupts.reacting(lambda: told.append("inner")):
                await trio.lowlevel.checkpoint()
        return 0

    assert await interruptible(work) == 0
    assert told == ["outer", "inner"]


def test_what_a_signal_is_to_a_shell():
    interrupts = Interrupts()
    interrupts.receive(signal.SIGTERM)
    assert interrupts.exit_code == 143
