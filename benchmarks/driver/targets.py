"""Servers that can be measured: this project's, the baseline, and one that is already running.

The driver speaks the crush wire. Besides that it needs to know how to start the server or where it
listens, which process to measure, and it writes a crush.json into the workspace that points the
server at the scripted model, and one into the server's home that trusts the workspace. So any server
that speaks the wire and reads these files can be measured.
"""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import orjson
from attrs import define, field, frozen

from benchmarks.driver.http import Place
from benchmarks.driver.process import Gauge, free_port, open_process, plain_environment
from benchmarks.driver.provider import LARGE, SMALL

CONTEXT: Final = 4_000_000
"""The context window of the scripted model: large, so that no session is summarised."""

TOKEN: Final = "the-token-of-the-benchmark-0123456789"
"""What the nodes of a cluster and their clients show."""


@frozen(kw_only=True)
class Served:
    """A server that is up."""

    place: Place
    gauge: Gauge | None
    """None if its process is not known; then CPU time and memory are not measured."""
    started_in: float | None = None


class Target(Protocol):
    """A server to measure."""

    @property
    def name(self) -> str:
        """Its name in the report."""
        ...

    def serve(self, folder: Path) -> AbstractAsyncContextManager[Served]:
        """Run it during the block; *folder* is empty and for this server only."""
        ...


@define(eq=False)
class Started:
    """A server that is started for each workload, by a command with a port."""

    name: str
    argv: tuple[str, ...]
    """The command; `{port}` in it is replaced."""
    environment: Mapping[str, str] = field(factory=dict, repr=False)
    """What its environment has besides the usual; `CRUSH_TRIO_TOKEN` is shown by its clients, too."""

    @asynccontextmanager
    async def serve(self, folder: Path) -> AsyncIterator[Served]:
        """Start the server, and stop it afterwards."""
        place = Place("127.0.0.1", free_port(), self.environment.get("CRUSH_TRIO_TOKEN", ""))
        argv = [part.format(port=place.port) for part in self.argv]
        environment = {**plain_environment(folder), **self.environment}
        async with open_process(argv, place, folder, environment) as process:
            yield Served(place=place, gauge=process.gauge, started_in=process.started_in)


@define(eq=False)
class Running:
    """A server that is already running and is not stopped."""

    url: str
    pid: int | None = None

    @property
    def name(self) -> str:
        """Its address, as its name."""
        return self.url

    @asynccontextmanager
    async def serve(self, folder: Path) -> AsyncIterator[Served]:
        """Return the running server."""
        parts = urlsplit(self.url)
        place = Place(parts.hostname or "127.0.0.1", parts.port or 80)
        yield Served(place=place, gauge=None if self.pid is None else Gauge(self.pid))


_SERVE: Final = (sys.executable, "-m", "crush_trio", "serve", "--host", "tcp://127.0.0.1:{port}")


def own_server(store: str = "") -> Started:
    """Return this project's server, as its command line starts it; with a *store* other than the default."""
    return Started("crush_trio", _SERVE, {"CRUSH_TRIO_STORE": store} if store else {})


def own_node(store: str, *, lease_ttl: float) -> Started:
    """Return this project's server as a node of a cluster: it passes requests on to the others."""
    options = ("--advertise", "tcp://127.0.0.1:{port}", "--lease-ttl", f"{lease_ttl:g}")
    environment = {"CRUSH_TRIO_STORE": store, "CRUSH_TRIO_TOKEN": TOKEN}
    return Started("crush_trio", (*_SERVE, "--site", "benchmark", *options), environment)


def baseline(*, paced: bool = False) -> Started:
    """Return the baseline; a *paced* one waits 33 ms between two events of an answer."""
    argv = (sys.executable, "-m", "benchmarks.baseline", "--port", "{port}")
    return Started("paced baseline" if paced else "baseline", (*argv, "--paced") if paced else argv)


def write_config(workspace: Path, base_url: str) -> None:
    """Write a crush.json into *workspace* that points the server at the scripted model."""
    models = [
        {"id": name, "name": name, "context_window": CONTEXT, "default_max_tokens": 4096}
        for name in (LARGE, SMALL)
    ]
    config = {
        "providers": {
            "script": {
                "type": "openai-compat",
                "base_url": base_url,
                "api_key": "none",
                "models": models,
            }
        },
        "models": {
            "large": {"provider": "script", "model": LARGE},
            "small": {"provider": "script", "model": SMALL},
        },
        "options": {"disable_default_providers": True, "disable_auto_summarize": True},
    }
    (workspace / "crush.json").write_bytes(orjson.dumps(config))


def trust_workspaces(home: Path) -> None:
    """Trust everything below *home*, the home directory of a server."""
    file = home / ".config" / "crush" / "crush.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(orjson.dumps({"crush_trio": {"trusted_directories": [str(home)]}}))
