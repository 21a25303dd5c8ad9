"""Settings of a backend and of its workspaces, and what is known of a workspace before it is opened.

Nothing in this package reads the process's environment. A program that wants the overrides gives the
mapping to `BackendSettings.from_environment`, once, and everything else gets the value.

A directory has one key, however it is spelt and whichever links lead to it (E2). Links are followed
as far as the path exists and the rest is cleaned, so a directory keeps its key when it is created:
resolving all or nothing would give it another one as soon as its workspace has created it, and the next
client a second workspace on the same database.

Whether a path is absolute can be seen from its text. Whether there is a directory is checked when a
workspace is opened on the disk, and not before: one that is open already can still be joined.

The package's front door exports these values, so this module imports nothing that takes long: the types
of what the settings hold are imported for type checkers only.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NewType, Protocol, Self, TypeVar

import trio
from attrs import field, fields_dict, frozen

from crush_trio.agent.asks.attendance import DEFAULT_PATIENCE
from crush_trio.backend.claims import CREATE_GRACE, DETACH_GRACE, Graces
from crush_trio.clock import Clock, IdSource, RandomIds, SystemClock
from crush_trio.errors import PathInvalid
from crush_trio.limits import DEFAULTS, Limits, SizeLimits
from crush_trio.runtime.lane import Capacity
from crush_trio.store.open import STORE_VARIABLE, StoreSettings
from crush_trio.tools.sandbox.machine import MachineSandbox, no_sandbox
from crush_trio.wire.ids import ClientId, WorkspaceId

if TYPE_CHECKING:
    from crush_trio.agent.coordinator import ExtraTools
    from crush_trio.agent.record.journal import MakeTurn
    from crush_trio.agent.turn.plan import StandIn
    from crush_trio.agent.turn.tool_calls import ToolHooks
    from crush_trio.config.live import Configuration
    from crush_trio.config.sources import Places
    from crush_trio.integrations.base import OpenIntegrations
    from crush_trio.providers.base import Provider
    from crush_trio.store.base import Store
    from crush_trio.store.open import OpenStore
    from crush_trio.tools.recent_logs import RecentLogs
    from crush_trio.tools.shell.jobs import OpenCommand
    from crush_trio.wire.config import CatalogProvider
    from crush_trio.wire.requests import WorkspaceRequest

WorkspaceKey = NewType("WorkspaceKey", str)
"""An absolute path without links, `.`, `..` or doubled slashes."""


class Resolve(Protocol):
    """Finds the key of a path; may wait, and must checkpoint."""

    async def __call__(self, path: str, /) -> WorkspaceKey:
        """Return the key of *path*."""
        ...


def check_path(path: str) -> None:
    """Raise `PathInvalid` for a path whose meaning would depend on where or as whom the server runs."""
    if path.startswith("~"):
        raise PathInvalid(f"{path} is not expanded by the server; send an absolute path")
    if not path.startswith("/"):
        raise PathInvalid(f"{path} is relative; send an absolute path")


def key_of(path: str) -> WorkspaceKey:
    """Return the key of *path*; reads the file system. A relative path starts at our directory.

    Raises `PathInvalid` for text that cannot be a path on this system, or that cannot be followed.
    """
    try:
        return WorkspaceKey(os.path.realpath(path))
    except ValueError as exc:  # a NUL, or a character the file system's encoding lacks
        raise PathInvalid("it has a character that no path of this system can have") from exc
    except OSError as exc:
        raise PathInvalid(f"{path} cannot be followed: {exc.strerror}") from exc


async def resolve_key(path: str) -> WorkspaceKey:
    """Return the key of *path* without holding up the program.

    A file system that does not answer holds up this caller only, and not even that one if it is
    cancelled: nothing was changed, so the thread may be left behind.
    """
    return await trio.to_thread.run_sync(key_of, path, abandon_on_cancel=True)


def use_directory(path: Path, *, create: bool = False) -> None:
    """Make sure that *path* is a directory that this process can work in; reads the file system.

    One that does not exist is made if *create* says so. Raises `PathInvalid`.
    """
    try:
        if create:
            path.mkdir(parents=True, exist_ok=True)
        path.stat()
    except FileNotFoundError:
        raise PathInvalid(f'{path} does not exist; make it, or send "create": true') from None
    except FileExistsError:
        pass  # and is no directory
    except OSError as exc:
        reason = exc.strerror or "it cannot be looked at"
        raise PathInvalid(f"{path}: {reason}; send the path of a directory") from exc
    if not path.is_dir():
        raise PathInvalid(f"{path} is not a directory; send the path of one")
    if not os.access(path, os.R_OK | os.X_OK):
        raise PathInvalid(f"{path} cannot be read; allow the user of the server to")


W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)


@frozen(kw_only=True)
class Terms:
    """What a client asks of the workspace it creates. The environment stays out of `repr`."""

    yolo: bool = False
    debug: bool = False
    data_dir: str = ""
    env: tuple[str, ...] = field(default=(), repr=False)
    channels: tuple[str, ...] = ()
    create: bool = False
    """Whether the directory is made if it does not exist."""
    visit: bool = False
    """Whether it is opened without the environment that its client had sent, to be read or stopped.

    No other create joins it: that waits until the visit is over, and opens the workspace as it asks.
    """

    @classmethod
    def of(cls, request: "WorkspaceRequest", *, visit: bool = False) -> "Terms":
        """Return the terms of a create, as they were sent; raises `PathInvalid`."""
        if "\0" in request.data_dir:
            raise PathInvalid("data_dir has a null character, which no path can have")
        sent = {name: getattr(request, name) for name in fields_dict(cls) if name != "visit"}
        return cls(**sent, visit=visit)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of `env`, without the token and the address with which the client reached the server.

        Neither the commands of the workspace nor other clients must see the token, and a command of an
        agent that uses a client must not be led to a server by chance. What is no variable is left
        out: no program could be started with it.
        """
        sent = (entry.partition("=") for entry in self.env if "\0" not in entry)
        return {
            name: text
            for name, equals, text in sent
            if name and equals and not name.startswith(_OF_CLIENTS)
        }

    def differences(self, other: "Terms") -> tuple[str, ...]:
        """Name what differs. No values: an environment has secrets in it."""
        return tuple(
            name for name in fields_dict(Terms) if getattr(self, name) != getattr(other, name)
        )


class WorkspaceLease(Protocol):
    """The right to run a workspace of a store that several servers share."""

    def open_store(self) -> AbstractAsyncContextManager["Store"]:
        """Open the store of the workspace."""
        ...


@frozen(kw_only=True)
class WorkspacePlan:
    """All that is known of a workspace before it is opened, and that stays so."""

    id: WorkspaceId
    key: WorkspaceKey
    path: str
    """The directory as its first client spelt it."""
    terms: Terms
    created_by: ClientId
    lease: WorkspaceLease | None = field(default=None, repr=False)
    """None for a store that is this process's alone."""


class OpenWorkspace(Protocol[W_co]):
    """OpenCommand what a backend keeps, never None. Leaving the block closes it, in bounded time."""

    def __call__(self, plan: WorkspacePlan, /) -> AbstractAsyncContextManager[W_co]:
        """Return the block in which the workspace of *plan* is open."""
        ...


OpenConfig = Callable[["Places"], AbstractAsyncContextManager["Configuration"]]
"""OpenCommand the configuration of a directory."""


@frozen(kw_only=True)
class WorkspaceSettings:
    """What the workspaces of a backend have; for `open_hosted_workspace`.

    They share it all. Of that only `capacity` changes: it counts the active runs of all of them.
    """

    environment: Mapping[str, str] = field(factory=dict, repr=False)
    """The user's environment; what a client sends along when it creates a workspace wins over it."""
    home: Path = Path("/")
    """The user's home directory."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Texts to hide in every workspace, such as the server's own token."""
    extra_tools: "ExtraTools | None" = field(default=None, repr=False)
    """Makes the tools that agents have besides the built-in ones; called once per workspace."""
    providers: "Mapping[str, Provider]" = field(factory=dict, repr=False)
    """Models that the program reaches itself, by the id under which a configuration names them."""
    open_integrations: "OpenIntegrations | None" = field(default=None, repr=False)
    """OpenCommand language servers, MCP servers and skills; by default those of the disk and the configuration.

    Where the configuration does not come from the disk either, the default is none.
    """
    make_turn: "MakeTurn | None" = field(default=None, repr=False)
    """Makes what runs play instead of the agent, given the transcript it writes to."""
    open_config: "OpenConfig | None" = field(default=None, repr=False)
    """OpenCommand the configuration of a directory; by default it is read from files."""
    store: StoreSettings = field(factory=StoreSettings)
    """Which store keeps the data."""
    open_store: "OpenStore | None" = field(default=None, repr=False)
    """OpenCommand a store of the program's own; then the directory of a workspace need not exist."""
    catalogue: "Sequence[CatalogProvider] | None" = field(default=None, repr=False)
    """The providers that are known without configuration; by default those that come along."""
    hooks: "ToolHooks | None" = field(default=None, repr=False)
    """Hooks of the program's own, instead of those that the configuration names."""
    stand_in: "StandIn | None" = field(default=None, repr=False)
    """Returns what runs use instead of the tools of a workspace; for replays."""
    clock: Clock = field(factory=SystemClock)
    ids: IdSource = field(factory=RandomIds)
    logs: "RecentLogs | None" = field(default=None, repr=False)
    """What the process logged last, for the tool that shows it."""
    page: str = ""
    """The address at which people reach the server's page; links in notifications begin with it."""
    patience: float = DEFAULT_PATIENCE
    """Seconds that an ask waits while no event stream is open."""
    opens: "OpenCommand | None" = field(default=None, repr=False)
    """Starts the commands of tools and hooks; by default in a process group of their own."""
    sandbox: MachineSandbox = field(repr=False)
    """The sandbox of commands, found once for all workspaces; none if the program starts them itself."""
    limits: Limits | None = None
    """How long a run may take for what cannot be cancelled."""
    sizes: SizeLimits = DEFAULTS
    """How much the workspaces take and keep."""
    capacity: Capacity = field(repr=False)
    """The places for active runs; given to share them with workspaces of other settings."""

    @sandbox.default
    def _sandbox(self) -> MachineSandbox:
        return MachineSandbox() if self.opens is None else no_sandbox()

    @capacity.default
    def _capacity(self) -> Capacity:
        return Capacity(self.sizes.active_runs)


_OF_CLIENTS: Final = ("CRUSH_TRIO_TOKEN", "CRUSH_TRIO_HOST", STORE_VARIABLE)
"""The beginnings of the names of variables that a client needs to reach a server, or a server its store."""

DETACH_VARIABLE: Final = "CRUSH_SERVER_DETACH_GRACE"
IDLE_VARIABLE: Final = "CRUSH_SERVER_IDLE_TIMEOUT"

_WHOLE_SECONDS: Final = re.compile(r"\+?[0-9]{1,18}", re.ASCII)


@frozen(kw_only=True)
class BackendSettings:
    """Times in seconds (contract E.1). `math.inf` means never."""

    create_grace: float = CREATE_GRACE
    detach_grace: float = DETACH_GRACE
    idle_linger: float = 60.0
    """How long a backend without workspaces waits for the next create before it asks to end."""
    replaceable: bool = False
    """Whether a client that wants a server of its own may end an idle one (`shutdown_if_idle`).

    For servers that a client started for itself; one that a person started ends by its idle time, by
    `shutdown` or by a signal.
    """
    idle_from_start: bool = False
    """Whether the idle time counts from the start on, not only from the end of the last workspace.

    For a server that a command starts: the command may end before it has opened a workspace.
    """
    retired_for: float = 3600.0
    """How long a client that said goodbye is refused; longer than any create stays on the wire."""
    close_limit: float = 30.0
    """How long a workspace may take to close before what it waits for is cancelled (L32)."""

    @property
    def graces(self) -> Graces:
        """The windows that a claim lives in without a stream."""
        return Graces(create=self.create_grace, detach=self.detach_grace)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Take the overrides from *environment*: whole seconds, 0 for at once.

        A value that is anything else, a negative one included, counts as absent.
        """
        default = cls()
        return cls(
            detach_grace=whole_seconds(environment, DETACH_VARIABLE, default.detach_grace),
            idle_linger=whole_seconds(environment, IDLE_VARIABLE, default.idle_linger),
        )


def whole_seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    """Return the seconds that a variable holds; *default* if it holds anything else."""
    text = environment.get(name, "")
    return float(text) if _WHOLE_SECONDS.fullmatch(text) else default
