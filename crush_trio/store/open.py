"""Store settings, and the one place that knows which URL scheme is which store.

A store is chosen by a URL. The scheme names the kind of store, and what follows the colon is for that
kind alone. A kind is imported when a store of it is asked for, so that a program on one kind does not
load the libraries of another. A further kind is one more entry in `_KINDS`.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Final, Literal, Self

import trio
from attrs import field, frozen

from crush_trio.clock import Clock, IdSource, RandomIds
from crush_trio.errors import CrushError

if TYPE_CHECKING:
    from crush_trio.store.base import Store
    from crush_trio.store.shared import DatabaseReport, NodeCard, NodeRow, SharedStore, Standing

STORE_VARIABLE: Final = "CRUSH_TRIO_STORE"
"""The environment variable with the URL of the store."""

SITE_VARIABLE: Final = "CRUSH_TRIO_SITE"
"""The environment variable with the site of the workspaces in a shared store."""

SITE_LENGTH: Final = 255

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


class StoreUnknown(CrushError):
    """The URL of the store settings names no kind of store; the detail says what it named."""

    code = "store_unknown"
    message = (
        "the store settings name no store that there is; use `sqlite:`, `memory:` or"
        " `postgresql://HOST/DATABASE`"
    )


class SiteInvalid(CrushError):
    """The name of a site cannot be stored, or would not be recognised by a person."""

    code = "site_invalid"
    message = (
        f"a site is a name of at most {SITE_LENGTH} visible characters, without blanks around it"
    )


def _scheme_only(url: str) -> str:
    """Return what of *url* may be shown; a text without a scheme may begin with a password."""
    scheme, colon, _ = url.partition(":")
    return f"{scheme}:…" if colon and _SCHEME.fullmatch(scheme) else "…"


@frozen
class StoreSettings:
    """Which store keeps the data of workspaces.

    * `sqlite:` is a file in the data directory of each workspace. With `sqlite:?synchronous=full` every
      commit waits for the disk, so that a power failure loses nothing either.
    * `memory:` is lost when its workspace closes.
    * `postgresql://USER:PASSWORD@HOST:PORT/DATABASE` is a database that many servers share; it may
      name several hosts and has the parameters of libpq. A workspace is known by its *site* and its
      directory; the site is by default the name of this host.

    What follows the scheme may hold a password, so it is not part of the `repr`.
    """

    url: str = field(default="sqlite:", repr=_scheme_only)
    site: str = ""
    """The machines that see the same files; only for a store that many servers share."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Return the settings of `CRUSH_TRIO_STORE` and `CRUSH_TRIO_SITE`, else the default.

        Raises `StoreUnknown` or `SiteInvalid`.
        """
        default = cls()
        settings = cls(
            environ.get(STORE_VARIABLE, default.url), environ.get(SITE_VARIABLE, default.site)
        )
        check_url(settings)
        check_site(settings)
        return settings

    @property
    def shared(self) -> bool:
        """Whether several servers may use the store."""
        return self.scheme in _REMOTE

    @property
    def named_site(self) -> str:
        """The site of the workspaces: of a shared store by default the name of this host; else none."""
        return (self.site or gethostname()) if self.shared else ""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The passwords in the URL."""
        if self.scheme not in _REMOTE:
            return ()
        from crush_trio.store.postgres.place import Place

        return Place.of(self.url).secrets

    @property
    def scheme(self) -> str:
        """The kind of store: what stands before the first colon."""
        return self.url.partition(":")[0]

    @property
    def place(self) -> str:
        """What stands after the first colon; empty for a store that needs no more than its kind."""
        return self.url.partition(":")[2]


OpenStore = Callable[[StoreSettings, Path], AbstractAsyncContextManager["Store"]]
"""Opens the store of a data directory, for this process alone."""


@frozen(kw_only=True)
class StoreReport:
    """What `inspect_store` found: how many sessions, and how many runs without an ending."""

    sessions: int
    orphans: int


@frozen(kw_only=True)
class _Kind:
    """One kind of store: how it is opened, and how to see that there is one without opening it."""

    open: "Callable[[Path, Path], AbstractAsyncContextManager[Store]]"
    """Takes the data directory and the directory of the workspace; each kind needs one of them."""
    has_data: Callable[[Path, Path], Awaitable[bool]]


# ── The kinds ───────────────────────────────────────────────────────────────────────────────────


def _sqlite(settings: StoreSettings) -> _Kind:
    from crush_trio.store.sqlite.database import DATABASE_NAME
    from crush_trio.store.sqlite.store import open_sqlite_store

    async def has_file(data_dir: Path, _directory: Path) -> bool:
        return await trio.Path(data_dir / DATABASE_NAME).exists()

    synchronous = _SYNCHRONOUS[settings.place]
    return _Kind(
        open=lambda data_dir, _: open_sqlite_store(data_dir, synchronous=synchronous),
        has_data=has_file,
    )


def _memory(_settings: StoreSettings) -> _Kind:
    return _Kind(open=_open_memory, has_data=_never)


def _postgres(settings: StoreSettings) -> _Kind:
    check_driver(settings)
    from crush_trio.store.postgres.opening import has_workspace, open_postgres_store

    return _Kind(
        open=lambda _, place: open_postgres_store(settings.url, place, site=settings.named_site),
        has_data=lambda _, place: has_workspace(settings.url, place, site=settings.named_site),
    )


@asynccontextmanager
async def _open_memory(_data_dir: Path, _directory: Path) -> "AsyncIterator[Store]":
    await trio.lowlevel.checkpoint()
    from crush_trio.store.memory.store import MemoryStore

    yield MemoryStore(RandomIds().new())


async def _never(_data_dir: Path, _directory: Path) -> bool:
    await trio.lowlevel.checkpoint()
    return False


_SYNCHRONOUS: Final[Mapping[str, Literal["NORMAL", "FULL"]]] = {
    "": "NORMAL",
    "?synchronous=normal": "NORMAL",
    "?synchronous=full": "FULL",
}
"""What may follow `sqlite:`, and when its commits wait for the disk."""


def _refuse_place(settings: StoreSettings) -> None:
    if settings.scheme == "sqlite" and settings.place not in _SYNCHRONOUS:
        raise StoreUnknown("only ?synchronous=full or ?synchronous=normal may follow sqlite:")
    if settings.scheme == "memory" and settings.place:
        raise StoreUnknown("nothing may follow memory: in its URL")


_KINDS: Final[Mapping[str, Callable[[StoreSettings], _Kind]]] = {
    "sqlite": _sqlite,
    "memory": _memory,
    "postgresql": _postgres,
    "postgres": _postgres,
}

_REMOTE: Final = frozenset({"postgresql", "postgres"})
"""The kinds whose URL says where the database is."""


def check_url(settings: StoreSettings) -> None:
    """Raise `StoreUnknown` unless there is such a kind of store; imports and opens nothing."""
    if settings.scheme not in _KINDS or ":" not in settings.url:
        scheme = _scheme_only(settings.url).removesuffix("…")
        named = f"begins with {scheme!r}" if scheme else "does not begin with the name of a kind"
        raise StoreUnknown(f"the URL {named}")
    if settings.scheme not in _REMOTE:
        _refuse_place(settings)
    elif not settings.place.startswith("//"):
        raise StoreUnknown(f"// and the address follow {settings.scheme}: in its URL")


def check_site(settings: StoreSettings) -> None:
    """Raise `SiteInvalid` for a name of a site that is hard to tell from another one."""
    site = settings.site
    if len(site) > SITE_LENGTH or not site.isprintable() or site != site.strip():
        raise SiteInvalid(repr(site[:SITE_LENGTH]))


def check_driver(settings: StoreSettings) -> None:
    """Raise `StoreUnsuitable`, with the command that installs it, if a package is missing."""
    if settings.scheme in _REMOTE:
        from crush_trio.store.postgres.place import need_driver

        need_driver()


def _kind_of(settings: StoreSettings) -> _Kind:
    check_url(settings)
    return _KINDS[settings.scheme](settings)


# ── What can be done with any of them ───────────────────────────────────────────────────────────


OpenSharedStore = Callable[["NodeCard", float], AbstractAsyncContextManager["SharedStore"]]
"""Opens a store that several servers share, for the node of a card, with the seconds that leases hold."""


def open_shared_store(settings: StoreSettings, *, clock: Clock, ids: IdSource) -> OpenSharedStore:
    """Return what opens the shared store of *settings*, which must be `shared`."""
    check_driver(settings)
    from crush_trio.store.postgres.nodes import open_postgres_nodes

    return lambda card, ttl: open_postgres_nodes(settings.url, card, ttl=ttl, clock=clock, ids=ids)


async def read_cluster(settings: StoreSettings) -> "tuple[list[NodeRow], list[Standing]]":
    """Return the nodes of a shared store and the workspaces that are run. Changes nothing.

    Raises `StoreUnknown` for a store that is not `shared`.
    """
    _check_shared(settings)
    from crush_trio.store.postgres import checks

    return await trio.to_thread.run_sync(checks.read_cluster, settings.url)


async def inspect_database(settings: StoreSettings) -> "DatabaseReport":
    """Return what a server on a shared store would meet. Changes nothing.

    Raises `StoreUnknown` for a store that is not `shared`, and a `StoreUnavailable` that says why the
    database cannot be used.
    """
    _check_shared(settings)
    from crush_trio.store.postgres import checks

    return await trio.to_thread.run_sync(checks.inspect_database, settings.url)


def _check_shared(settings: StoreSettings) -> None:
    check_url(settings)
    if not settings.shared:
        raise StoreUnknown(f"{settings.scheme}: is not a store that several servers share")
    check_driver(settings)


def import_store(settings: StoreSettings) -> None:
    """Import what opening a store takes, ahead of time; raises `StoreUnknown`.

    Importing holds up every task, so a program that already serves calls this in a thread.
    """
    _kind_of(settings)


def open_store(
    settings: StoreSettings, data_dir: Path, directory: Path | None = None
) -> "AbstractAsyncContextManager[Store]":
    """Open the store that *settings* name, for the workspace of *directory*, for this process alone.

    Its data directory is *data_dir*; the default for *directory* is where that one is. Raises `StoreUnknown` for settings that name none; opening raises a
    `StoreUnavailable` that says what to do.
    """
    return _kind_of(settings).open(data_dir, directory or data_dir.parent)


async def has_data(settings: StoreSettings, data_dir: Path, directory: Path | None = None) -> bool:
    """Whether a store was ever opened for a workspace. Opens and creates nothing."""
    return await _kind_of(settings).has_data(data_dir, directory or data_dir.parent)


async def inspect_store(
    settings: StoreSettings, data_dir: Path, directory: Path | None = None
) -> StoreReport:
    """Read a whole store and return what is in it; raises what is wrong with it.

    It must have data already, see `has_data`: a store that does not exist would be created.
    """
    async with open_store(settings, data_dir, directory) as store:
        await store.check()
        sessions, orphans = await store.sessions(), await store.orphans()
    return StoreReport(sessions=len(sessions), orphans=len(orphans))
