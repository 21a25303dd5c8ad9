"""Runs all micro benchmarks and prints which of them missed their targets."""

import pkgutil
import sys
from importlib import import_module

from benchmarks import micro
from benchmarks.micro.timing import MISSED, seconds

NOT_BENCHMARKS = {"__main__", "timing"}


def run(name: str) -> tuple[str, float, bool]:
    """Run one module; return its name, its processor time and whether its target was met.

    Its `main` returns `MISSED` if its target was missed, and anything else if not.
    """
    results: list[object] = []
    main = import_module(f"benchmarks.micro.{name}").main
    took = seconds(lambda: results.append(main()))
    print()
    return name, took, results != [MISSED]


def main() -> int:
    """Run them all, print a table, and return 1 if any target was missed."""
    names = sorted(module.name for module in pkgutil.iter_modules(micro.__path__))
    rows = [run(name) for name in names if name not in NOT_BENCHMARKS]
    print(f"{'benchmark':<20} {'cpu':>8}   target")
    for name, took, met in rows:
        print(f"{name:<20} {took:>6.1f} s   {'met' if met else 'MISSED'}")
    return 0 if all(met for _, _, met in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
