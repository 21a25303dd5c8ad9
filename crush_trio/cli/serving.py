"""A server in the foreground, until a signal or a client ends it.

Standard output gets one line, once clients are answered: where. Everything else goes to standard
error, as events with their fields. The first SIGTERM or SIGINT ends the server in order, within the
grace; a second one ends it as signals do.
"""

import os
from collections.abc import Mapping
from functools import partial
from typing import Final

import trio
from attrs import evolve

from crush_trio.cli.invocation import choose_address
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.hosting import HostSettings, run_server
from crush_trio.server.logging_setup import LogFormat, LogLevel, open_log
from crush_trio.server.serve import wait_for_signal
from crush_trio.wire.addresses import Address

_WHO_ANSWERS: Final = "Where no model is configured, the offline demo answers."


def serve_until_told(
    host: str | None,
    environ: Mapping[str, str],
    *,
    grace: float,
    idle_timeout: float | None = None,
    limits: Mapping[str, float] | None = None,
    log: tuple[str, str] = ("human", "info"),
) -> None:
    """Serve until told to stop; raises a `CrushError` if that cannot be done."""
    address = choose_address(host, environ, os.getuid())
    settings = choose_settings(idle_timeout, environ, limits)
    token = settings.guard.token
    secrets = () if token is None else (token,)
    with open_log(LogFormat(log[0]), LogLevel(log[1]), secrets=secrets):
        trio.run(_serve, address, settings, grace)


def choose_settings(
    idle_timeout: float | None,
    environ: Mapping[str, str],
    limits: Mapping[str, float] | None = None,
) -> HostSettings:
    """Return the settings of *environ*; an *idle_timeout* and *limits* that were given win over it."""
    settings = HostSettings.from_environment(environ)
    settings = evolve(settings, sizes=settings.sizes.changed(limits or {}))
    if idle_timeout is None:
        return settings
    return evolve(settings, backend=evolve(settings.backend, idle_linger=idle_timeout))


async def _serve(address: Address, settings: HostSettings, grace: float) -> None:
    """Serve, say where, and end at the first signal.

    The signals are waited for before anything is opened: whoever reads the address may send one.
    """
    stop = trio.Event()
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(_set_at_signal, stop)
        server = partial(
            run_server,
            [address],
            settings=settings,
            shutdown=stop.wait,
            grace=grace,
            whole_process=True,
        )
        async with open_hidden_nursery() as serving:
            [bound] = await serving.start(server)
            print(f"Listening on {bound}. {_WHO_ANSWERS}", flush=True)
        nursery.cancel_scope.cancel()


async def _set_at_signal(stop: trio.Event) -> None:
    await wait_for_signal()
    stop.set()
