"""A program that is only a server: `server_process.py ADDRESS GRACE`; it prints where it listens."""

import sys
from functools import partial

import trio

from crush_trio.server import parse_address, serve, wait_for_signal
from tests.server.tiny_app import TinyApp


async def main(address, grace):
    app = TinyApp()
    async with trio.open_nursery() as nursery:
        [bound] = await nursery.start(
            partial(
                serve,
                app.quart,
                [parse_address(address)],
                shutdown=wait_for_signal,
                on_draining=app.draining.set,
                grace=float(grace),
            )
        )
        say(bound)
    say("stopped")


def say(what):
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
