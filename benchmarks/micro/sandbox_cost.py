"""The cost of running a command in a sandbox, compared with the same command without one.

The command is `true` in a shell, so nearly all of the time is what the server adds: the guard, its two
processes, and the sandbox. Each round runs the command once in every way, in real time, and the median
of the rounds' ratios counts. The confinements are like those of a server: an unasked command writes
nothing and has no network; an approved one writes its workspace, in which names of a repository are
protected. Run it with `python -m benchmarks.micro.sandbox_cost`.
"""

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio
from attrs import evolve

from benchmarks.micro.timing import Ratio, report
from crush_trio.clock import SystemClock
from crush_trio.tools.sandbox.confinement import Confinement, Network, SandboxKind
from crush_trio.tools.sandbox.enforcement import reduced
from crush_trio.tools.sandbox.probe import probe_sandbox
from crush_trio.tools.shell.environment import shell_argv
from crush_trio.tools.shell.process import Command, run_command

ROUNDS: Final = 60
WARM_UP: Final = 5
TARGET: Final = 1.5

PLAIN: Final = "plain"


def commands(place: Path, kinds: tuple[SandboxKind, ...]) -> Mapping[str, Command]:
    """Return the command in every way that this machine allows, by name."""
    workspace, private = place / "workspace", place / "private"
    (workspace / ".git/hooks").mkdir(parents=True)
    (workspace / ".git/config").touch()
    private.mkdir()
    protected = [workspace / name for name in (".git/config", ".git/hooks", ".crush")]
    unasked = Confinement(hidden=[private], network=Network.OFF)
    approved = Confinement(writable=[workspace], protected=protected, hidden=[private])
    plain = Command(argv=shell_argv("true"), working_dir=workspace, env={"PATH": "/usr/bin:/bin"})
    found = {PLAIN: plain}
    for kind in kinds:
        for name, confinement in (("unasked", unasked), ("approved", approved)):
            possible, _ = reduced(confinement, kind)
            found[f"{kind}, {name}"] = evolve(plain, confinement=possible, sandbox=kind)
    return found


async def timed(command: Command) -> float:
    """Run a command and return the seconds it took."""
    began = time.perf_counter()
    finished = await run_command(command, clock=SystemClock())
    assert finished.ended.exit_code == 0, finished.stderr.text()
    return time.perf_counter() - began


async def measure(ways: Mapping[str, Command]) -> dict[str, list[float]]:
    """Return the times of all rounds, by name."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM_UP + ROUNDS):
        for name, command in ways.items():
            took = await timed(command)
            if number >= WARM_UP:
                times[name].append(took)
    return times


async def run() -> int:
    """Measure what this machine has, and print the ratios."""
    found = await probe_sandbox()
    for reason in found.reasons:
        print(reason)
    kinds = {
        SandboxKind.BUBBLEWRAP: (SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK),
        SandboxKind.LANDLOCK: (SandboxKind.LANDLOCK,),
        SandboxKind.NONE: (),
    }[found.kind]
    with tempfile.TemporaryDirectory() as place:
        times = await measure(commands(Path(place), kinds))
    ratios = [
        Ratio(name=name, small=times[PLAIN], large=each, target=TARGET)
        for name, each in times.items()
        if name != PLAIN
    ]
    return report("A command without a sandbox, and in one:", ratios)


def main() -> int:
    """Run the benchmark."""
    return trio.run(run)


if __name__ == "__main__":
    sys.exit(main())
