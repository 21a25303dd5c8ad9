"""`python -m crush_trio.testing.torture`: torture a server, print a verdict per promise, exit with 0, 1 or 2."""

import argparse
import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import orjson
import trio

from crush_trio.clock import RandomIds
from crush_trio.net.address import (
    Address,
    BadAddress,
    TcpAddress,
    UnixAddress,
    is_loopback,
    parse_server_url,
)
from crush_trio.net.dial import Dialer, UnixDialer
from crush_trio.testing.torture.kit import POLL, TOOL
from crush_trio.testing.torture.promises import PROMISES, CannotRun, Trial, Verdict
from crush_trio.testing.torture.target import open_target
from crush_trio.testing.torture.view import Json

if TYPE_CHECKING:
    from crush_trio.testing.model.script import Answer
    from crush_trio.testing.model.server import HeardRequest

TOKEN: Final = "CRUSH_TRIO_TOKEN"
MODEL: Final = "torture"
PACE: Final = 0.03
"""Seconds between two words of the scripted model."""

CLOSE_LIMIT: Final = 5.0
"""Seconds that a server may take to close its database, before the temporary directory is removed."""

_PROSE: Final = "write each of these numbers"
"""What only the longer prompts have."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Torture once; return the exit code."""
    given = _parser().parse_args(arguments)
    out = sys.stderr if given.json else sys.stdout

    def say(line: str) -> None:
        out.write(f"{line}\n")
        out.flush()

    try:
        trial = trio.run(_torture, given, _address(given), say)
    except (CannotRun, BadAddress) as exc:
        sys.stderr.write(f"cannot run: {exc}\n")
        if given.json:
            sys.stdout.write(f"{orjson.dumps({'exit_code': 2, 'cannot_run': str(exc)}).decode()}\n")
        return 2
    except (KeyboardInterrupt, BaseExceptionGroup) as exc:
        if isinstance(exc, BaseExceptionGroup) and exc.subgroup(KeyboardInterrupt) is None:
            raise
        sys.stderr.write("cannot run: ended by the keyboard\n")
        return 2
    for line in table(trial.verdicts, trial.seed):
        say(line)
    if given.json:
        sys.stdout.write(f"{orjson.dumps(trial.report()).decode()}\n")
    return trial.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m crush_trio.testing.torture",
        description="Check the promises of a server of the wire: cancels, endings, streams.",
        epilog="Exit code: 0 every promise was kept, 1 one was broken, 2 it could not be checked.",
    )
    add = parser.add_argument
    add("--url", required=True, help="the server: http://host:port or unix:///path/to/socket")
    add("--profile", choices=("crush", "native"), default="native", help="its wire (native)")
    add("--remote", action="store_true", help="allow a server on another machine")
    add("--token", help=f"the server's token; the variable {TOKEN} is used if it is set")
    add("--directory", help="the workspace, on the server's machine (a new temporary one)")
    add("--only", action="append", choices=[promise.name for promise in PROMISES], metavar="NAME",
        help="check this promise alone; may be repeated: %(choices)s")  # fmt: skip
    add("--seed", type=int, help="repeat the random choices of an earlier run")
    add("--patience", type=float, default=60.0, metavar="SECONDS",
        help="how long the server may be silent while something is due (60)")  # fmt: skip
    add("--limit", type=float, default=1200.0, metavar="SECONDS", help="for everything (1200)")
    add("--model", action="store_true",
        help="start a scripted model, print the configuration that points at it, and wait")  # fmt: skip
    add("--json", action="store_true", help="print a JSON report; progress goes to stderr")
    return parser


def _address(given: argparse.Namespace) -> Address:
    address = parse_server_url(given.url)
    if not is_loopback(address) and not given.remote:
        raise CannotRun(
            f"{address} is on another machine, and this puts load on it; pass --remote if you may"
        )
    token = given.token or os.environ.get(TOKEN)
    if (
        token
        and isinstance(address, TcpAddress)
        and not address.secure
        and not is_loopback(address)
    ):
        raise CannotRun("the token would be sent unencrypted; use https:// or a tunnel")
    return address


async def _torture(
    given: argparse.Namespace, address: Address, say: Callable[[str], None]
) -> Trial:
    ids = RandomIds()
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    dial = UnixDialer(address) if isinstance(address, UnixAddress) else Dialer(_certificates())
    chosen = [promise for promise in PROMISES if not given.only or promise.name in given.only]
    with tempfile.TemporaryDirectory(
        prefix="crush-torture-", ignore_cleanup_errors=True
    ) as temporary:
        async with (
            _model(given.model, say),
            open_target(
                address,
                dial,
                ids.new(),
                native=given.profile == "native",
                token=given.token or os.environ.get(TOKEN, ""),
                patience=given.patience,
            ) as target,
        ):
            say(f"{address}, profile {given.profile}, seed {seed}")
            nonce, directory = ids.new()[:8], given.directory or temporary
            trial = Trial(target, seed, nonce, directory, given.limit, say)
            try:
                await trial.run(chosen)
            finally:
                with trio.move_on_after(CLOSE_LIMIT, shield=True):
                    await _closed(trio.Path(temporary))
    return trial


async def _closed(directory: trio.Path) -> None:
    """Wait until no database below *directory* is open: a server that is closing still writes there."""
    while list(await directory.rglob("*-wal")):  # noqa: ASYNC110
        await trio.sleep(POLL)


def _certificates() -> dict[str, str]:
    """Return the variables that name certificates; proxies are not for the server under test."""
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    return {name: os.environ[name] for name in names if name in os.environ}


def table(verdicts: Sequence[Verdict], seed: int) -> list[str]:
    """Return the verdicts as lines, and a sentence about all of them."""
    width = max((len(verdict.promise) for verdict in verdicts), default=0)
    lines = ["", *(f"{found.promise:{width}}  {found.verdict}" for found in verdicts)]
    lines.extend(f"  {found.name}: {found.evidence}" for found in verdicts if found.evidence)
    counts = [
        f"{number} {kind}"
        for kind in ("kept", "broken", "undecided", "not applicable")
        if (number := sum(found.verdict == kind for found in verdicts))
    ]
    return [*lines, f"{', '.join(counts)}; --seed {seed} makes the same choices again"]


# ── The scripted model ──────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _model(wanted: bool, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Run the scripted model, if it is wanted; wait until the server was configured for it."""
    if not wanted:
        await trio.lowlevel.checkpoint()
        yield
        return
    # the model needs what providers need; a kit without it starts faster
    from crush_trio.testing.model.server import open_model_server

    async with open_model_server(answer_to, models=(MODEL,)) as server:
        say("The scripted model listens. Put this into the crush.json of the user who runs the")
        say("server (~/.config/crush/crush.json); a project's own crush.json is not trusted:")
        config = configuration(f"{server.base_url}/v1")
        say(orjson.dumps(config, option=orjson.OPT_INDENT_2).decode())
        say("Restart the server if it was running, then press Enter.")
        await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        yield


def configuration(base_url: str) -> Json:
    """Return a crush.json whose only model is the scripted one."""
    model = {"id": MODEL, "name": MODEL, "context_window": 200_000, "default_max_tokens": 4096}
    provider = {"type": "openai-compat", "base_url": base_url, "api_key": "none", "models": [model]}
    chosen = {"provider": MODEL, "model": MODEL}
    return {
        "providers": {MODEL: provider},
        "models": {"large": chosen, "small": chosen},
        "options": {"disable_default_providers": True},
    }


def answer_to(request: "HeardRequest") -> "Answer":
    """Return the scripted answer to one of the kit's prompts, or to a request for a title."""
    from crush_trio.testing.model.script import CallTool, Say, Sleep

    body: Json = request.body
    if body["messages"][-1]["role"] == "tool":
        return [Say("That is all.")]
    if TOOL in request.text and body.get("tools"):
        return [CallTool("ls", {"path": "."})]
    words = request.text.split() if _PROSE in request.text else ["ok"]
    return [step for word in words for step in (Say(f"{word} "), Sleep(PACE))]


if __name__ == "__main__":
    sys.exit(main())
