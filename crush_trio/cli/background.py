"""The server in the background, which commands share if no other server runs.

The first command that needs it starts it, on a socket beside the default one. It ends a minute after its
last client has left. It has its own session, so neither Ctrl-C nor a closed terminal reaches it, and its
output goes to a log file.

A lock file decides who starts it. The command locks the file and passes the locked descriptor on to the
server, which keeps it until the process ends. So the lock is held exactly while a server starts, runs or
ends, however it ends, and commands that find it held wait for the socket. The file names the installation
that the server belongs to.

Both files may be deleted while it runs, by a cleaner or with the user's runtime directory. The server then
makes them again within a second. A command may be faster and start another server. Then the first serves
the commands that it has, which keep their way to it (`FixedUnixDialer`), and takes the files back when the
other has ended.

Nothing heavy is imported at the top: `start_ahead` is called before a command's own imports, so that both
programs import at the same time.
"""

import errno
import fcntl
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from attrs import frozen

from crush_trio import __version__
from crush_trio.cli.exits import expected
from crush_trio.errors import CrushError
from crush_trio.net.address import UnixAddress, default_address
from crush_trio.net.unix_socket import make_private

VARIABLE: Final = "CRUSH_TRIO_BACKGROUND"
"""If it is 0, a command that finds no server runs one in its own process."""

LINGER: Final = 60.0
"""Seconds after which the server ends if no client has a workspace open."""

RESTORE: Final = 1.0
"""Seconds within which the server makes its files again if they were deleted."""

LOG_NAME: Final = "server.log"
LOG_MOST: Final = 1_000_000
"""Bytes of the log file beyond which the next server begins it anew."""

_MODULE: Final = "crush_trio.cli.background"
_LOCK_FD: Final = 3
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT
_LOG_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_SAFE_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_DEFAULT_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
_CONNECT_LIMIT: Final = 1.0
_LINE_MOST: Final = 4000


class BackgroundFailed(CrushError):
    """The server in the background did not start; the detail names its log."""

    code = "background_failed"
    message = "the server in the background did not start"


@frozen
class Background:
    """Where the server in the background listens, and the files that belong to it."""

    address: UnixAddress
    lock: Path
    log: Path

    @classmethod
    def of(cls, environ: Mapping[str, str], uid: int) -> "Background | None":
        """Return that of a user; None if the environment asks for none or has no place for its log."""
        if environ.get(VARIABLE) == "0":
            return None
        from crush_trio.audit.record import audit_path

        audit = audit_path(environ)
        if audit is None:
            return None
        address = default_address(environ, uid, stem="crush-trio")
        lock = Path(address.path).with_suffix(".lock")
        return cls(address, lock, audit.with_name(LOG_NAME))

    def listening(self) -> bool:
        """Whether a program accepts connections at the socket. Does not wait for longer than a second."""
        return _listening(self.address)

    @property
    def ours(self) -> bool:
        """Whether this installation of this version has started the server, according to the lock file."""
        with suppress(OSError), open(_open_own(self.lock, os.O_RDONLY), "rb") as file:
            return file.read(_LINE_MOST).decode(errors="replace") == _identity()
        return False

    def start(self, environ: Mapping[str, str], *, spawn: bool = True) -> bool:
        """Start the server if none runs, starts or ends; return whether that was so.

        *spawn* false only looks. Raises `OSError` if the files cannot be made or are not the user's own,
        and `ForeignSocket` if their directory belongs to another user.
        """
        if self.address.private and self.address.owner is not None:
            make_private(self.address.path.parent, self.address.owner)
        lock = _open_own(self.lock, _LOCK_FLAGS)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        try:
            if self.listening():
                return False
            if spawn:
                _sign(lock)
                self._spawn(lock, environ)
            return True
        finally:
            os.close(lock)

    def _spawn(self, lock: int, environ: Mapping[str, str]) -> None:
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # -P: not from the current directory, which is the project's.
        program = [sys.executable, "-P", "-X", "utf8", "-m", _MODULE, str(self.address.path)]
        # The log is opened here: the child would wait at a named pipe, and this process for the child.
        with (
            _open_passed(_open_own(self.log, _LOG_FLAGS)) as log,
            _open_passed(os.dup(lock)) as held,
        ):
            if os.fstat(log).st_size > LOG_MOST:
                os.ftruncate(log, 0)
            os.posix_spawn(
                sys.executable,
                program,
                _server_environment(environ),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                    (os.POSIX_SPAWN_DUP2, held, _LOCK_FD),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=_DEFAULT_SIGNALS,
            )

    def failure(self) -> BackgroundFailed:
        """Return the error for a server that did not start: the last line of its log, and the log."""
        line = ""
        with suppress(OSError), open(_open_own(self.log, os.O_RDONLY), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LINE_MOST))
            line = file.read().decode(errors="replace").strip().rpartition("\n")[2]
        told = f"{line.removeprefix('crush-trio: ')} " if line else ""
        return BackgroundFailed(
            f"{told}(log: {self.log}); correct that, or set {VARIABLE}=0 to do without it"
        )


def _open_own(path: Path, flags: int) -> int:
    """Open a file and return its descriptor; raises `OSError` unless it is a plain file of our user alone.

    The directory may be open to others. A link there could name a file that must not be overwritten, a
    named pipe would be waited for, and a file of another user could be locked by them for ever.
    """
    found = os.open(path, flags | _SAFE_FLAGS, 0o600)
    about = os.fstat(found)
    if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_nlink == 1:
        return found
    os.close(found)
    raise OSError(errno.EPERM, "not a file of this user alone; remove it", str(path))


@contextmanager
def _open_passed(descriptor: int) -> Iterator[int]:
    """Replace *descriptor* by one above those that the server gets, for the block.

    `dup2` of a descriptor onto itself would leave it closed on exec.
    """
    try:
        passed = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LOCK_FD + 1)
    finally:
        os.close(descriptor)
    try:
        yield passed
    finally:
        os.close(passed)


def _listening(address: UnixAddress) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_CONNECT_LIMIT)
        try:
            sock.connect(str(address.path))
        except (BlockingIOError, TimeoutError):
            return True  # too many clients wait there already
        except OSError:
            return False
    return True


def _identity() -> str:
    """Return which installation this is: its version, its interpreter and its directory."""
    return f"{__version__}\n{sys.executable}\n{Path(__file__).parent.parent}\n"


def _sign(lock: int) -> None:
    """Write into the lock file which installation the server belongs to."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, _identity().encode(errors="replace"), 0)


def keep_lock(path: Path, held: int) -> None:
    """Lock the file at *path* with the descriptor *held*, if it is not the file that *held* has locked.

    Does nothing if another process has locked it: that is another server, or a command that starts one.
    """
    with suppress(OSError):
        if path.exists() and os.path.samestat(path.stat(), os.fstat(held)):
            return
        file = _open_own(path, _LOCK_FLAGS)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sign(file)
            os.dup2(file, held, inheritable=False)
        finally:
            os.close(file)


def _server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the tokens of servers: the socket is the owner's alone."""
    own = ("CRUSH_TRIO_TOKEN", "CRUSH_SERVER_IDLE_TIMEOUT", "PYTHONIOENCODING", "PYTHONUTF8")
    return {name: text for name, text in environ.items() if not name.startswith(own)}


def start_ahead(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Start the server if the command with these arguments will need it; errors are left to the command."""
    named = environ.get("CRUSH_TRIO_HOST")
    if named or any(each.startswith(("--host", "-h", "--help")) for each in arguments):
        return
    with suppress(OSError, CrushError):
        found = Background.of(environ, os.getuid())
        if found is None or _listening(default_address(environ, os.getuid())):
            return
        if not found.listening():
            found.start(environ)


# ── The server's own process ────────────────────────────────────────────────────────────────────


def main(path: str) -> int:
    """Serve at the socket *path* until no client has been there for a minute; return the exit code."""
    os.set_inheritable(_LOCK_FD, False)
    os.closerange(_LOCK_FD + 1, os.sysconf("SC_OPEN_MAX"))  # pipes of the first command's shell
    os.chdir("/")
    from pathlib import PurePosixPath

    import trio
    from attrs import evolve

    from crush_trio.cli.commands.serve import serve_until_signal
    from crush_trio.nursery import open_hidden_nursery
    from crush_trio.server.http.serve import GRACE
    from crush_trio.server.logging import LogFormat, LogLevel, open_log
    from crush_trio.server.settings import GuardSettings, ServerSettings

    address = UnixAddress(PurePosixPath(path), owner=os.getuid())
    try:
        settings = ServerSettings.from_environment(os.environ)
        backend = evolve(
            settings.backend, idle_linger=LINGER, idle_from_start=True, replaceable=True
        )
        settings = evolve(settings, backend=backend, guard=GuardSettings(), restore_sockets=RESTORE)

        async def serve() -> None:
            async with open_hidden_nursery() as nursery:
                nursery.start_soon(_keep_lock, Path(path).with_suffix(".lock"))
                await serve_until_signal([address], settings, GRACE)
                nursery.cancel_scope.cancel()

        with open_log(LogFormat.HUMAN, LogLevel.INFO):
            trio.run(serve)
    except (CrushError, BaseExceptionGroup) as error:
        failure = expected(error)
        if failure is None:
            raise
        print(f"crush-trio: {failure}", file=sys.stderr)
        return 1
    return 0


async def _keep_lock(path: Path) -> None:
    import trio

    while True:
        await trio.sleep(RESTORE)
        keep_lock(path, _LOCK_FD)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
