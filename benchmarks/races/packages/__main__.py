"""Run the scenarios of public packages, and print what was found.

python -m benchmarks.races.packages                 every package
python -m benchmarks.races.packages httpcore anyio  these
"""

import importlib
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pkgutil import iter_modules

from benchmarks.races import packages
from crush_trio.testing.explore import ScheduleFailure, cancel_everywhere, explore

LIMIT = 20_000
"""At most how many schedules of one scenario are run."""


def main(wanted: list[str]) -> int:
    """Run what is wanted; returns how many scenarios failed."""
    failed = 0
    for module in iter_modules(packages.__path__):
        if module.name == "__main__":
            continue
        try:
            loaded = importlib.import_module(f"{packages.__name__}.{module.name}")
        except ModuleNotFoundError as exc:
            print(f"{module.name}: {exc.name} is not installed: see {packages.__name__}")
            continue
        if wanted and loaded.PACKAGE not in wanted:
            continue
        print(f"\n== {loaded.PACKAGE} {version(loaded.PACKAGE)}")
        failed += sum(not run(scenario) for scenario in loaded.SCENARIOS)
    return failed


def run(scenario: Callable[[], Awaitable[str]]) -> bool:
    """Explore a scenario, and cancel it everywhere; print the results, return whether it passed."""
    passed = True
    for kind, attempt in (
        ("2 deviations", lambda: explore(scenario, limit=LIMIT)),
        ("cancelled everywhere", lambda: cancel_everywhere(scenario)),
        ("cancelled, 2 deviations", lambda: cancel_everywhere(scenario, deviations=2)),
    ):
        try:
            print(f"{scenario.__name__}, {kind}: {attempt()}", flush=True)
        except ScheduleFailure as failure:
            passed = False
            print(f"{scenario.__name__}, {kind}: FAILED: {failure}\n", flush=True)
            break
    return passed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
