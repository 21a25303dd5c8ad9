"""`python -m benchmarks`: measure the server against the baseline, print a table and the missed promises.

python -m benchmarks                              everything, within ten minutes
python -m benchmarks --quick --only b,c           a few seconds, to see that it works
python -m benchmarks --page docs/performance.md   everything, and the table into the page
python -m benchmarks --target http://127.0.0.1:8765 --pid 4711     a third server in columns of its own
python -m benchmarks --micro                      single parts, without servers
"""

import argparse
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Final

import orjson
import trio

from benchmarks import report
from benchmarks.bench import BUDGET, ROUNDS, Bench
from benchmarks.driver.provider import open_provider
from benchmarks.driver.targets import Running, baseline
from benchmarks.figures import Figure
from benchmarks.machine import this_machine
from benchmarks.micro.__main__ import main as micro
from benchmarks.workloads import (
    accept,
    age,
    cancel,
    fanout,
    lag,
    memory,
    paced,
    polling,
    scaling,
    sessions,
    stalled,
    start,
    turn,
)
from benchmarks.workloads.cluster import acceptance, forwarding, takeover, throughput

WORKLOADS: Final[Sequence[ModuleType]] = (
    *(start, accept, turn, sessions, lag, cancel, polling),
    *(acceptance, forwarding, throughput, takeover),
    *(memory, scaling, age, stalled, paced, fanout),
)
"""In the order in which they run: the one that uses all remaining time is the last."""

Measure = Callable[[Bench], Awaitable[list[Figure]]]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks", epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_letters, metavar="a,d", help="run these workloads only")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, one round; the figures mean nothing"
    )
    parser.add_argument("--target", metavar="URL", help="measure the server that runs there, too")
    parser.add_argument("--pid", type=int, help="the target's process, for its CPU and memory")
    parser.add_argument(
        "--provider-port", type=int, default=0, metavar="PORT", help="where the model listens"
    )
    parser.add_argument("--no-baseline", action="store_true", help="leave the baseline out")
    parser.add_argument(
        "--budget", type=float, default=BUDGET, metavar="S", help="seconds for everything"
    )
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="write every round of every figure"
    )
    parser.add_argument(
        "--page", type=Path, metavar="PATH", help="put the table between a page's markers"
    )
    parser.add_argument("--micro", action="store_true", help="measure single parts instead")
    return parser.parse_args(argv)


def _letters(text: str) -> frozenset[str]:
    known = {module.LETTER for module in WORKLOADS}
    chosen = frozenset(text.replace(" ", "").split(","))
    if not chosen <= known:
        raise argparse.ArgumentTypeError(f"the workloads are {', '.join(sorted(known))}")
    return chosen


async def measure(options: argparse.Namespace) -> report.Report:
    """Run the selected workloads."""
    machine, began = this_machine(), trio.current_time()
    chosen = [m for m in WORKLOADS if options.only is None or m.LETTER in options.only]
    figures: list[Figure] = []
    async with open_provider(options.provider_port) as provider:
        bench = Bench(
            provider,
            baseline=None if options.no_baseline else baseline(),
            other=Running(options.target, options.pid) if options.target else None,
            quick=options.quick,
            rounds=1 if options.quick else ROUNDS,
            budget=options.budget,
        )
        for module in chosen:
            figures += await _timed(module, bench)
    return report.Report(
        machine=machine,
        day=datetime.now(UTC).date().isoformat(),
        seconds=trio.current_time() - began,
        own=bench.own.name,
        other="" if bench.other is None else bench.other.name,
        titles={module.LETTER: module.TITLE for module in chosen},
        figures=sorted(figures, key=lambda figure: figure.workload),
        left_out=bench.left_out,
        quick=options.quick,
    )


async def _timed(module: ModuleType, bench: Bench) -> list[Figure]:
    """Run one workload and print its title and duration to stderr."""
    began = trio.current_time()
    print(f"({module.LETTER}) {module.TITLE} …", end=" ", file=sys.stderr, flush=True)
    measure_it: Measure = module.measure
    figures = await measure_it(bench)
    print(f"{trio.current_time() - began:.0f} s", file=sys.stderr, flush=True)
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report; return 1 if a promise was missed."""
    options = parse(sys.argv[1:] if argv is None else argv)
    if options.micro:
        return micro()
    found = trio.run(measure, options)
    print(report.text_table(found))
    if options.json is not None:
        options.json.write_bytes(orjson.dumps(report.as_json(found), option=orjson.OPT_INDENT_2))
    if options.page is not None:
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(report.replaced(page, report.markdown(found)), encoding="utf-8")
    return 1 if found.missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
