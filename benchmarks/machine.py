"""The machine and the package versions of a benchmark run."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from attrs import frozen

PACKAGES: Final = (
    "trio",
    "hypercorn",
    "quart",
    "h11",
    "fastapi",
    "starlette",
    "uvicorn",
    "uvloop",
    "httptools",
    "httpx",
)
BUSY: Final = 0.5
"""The load average from which on a machine does not count as quiet."""


@frozen(kw_only=True)
class Machine:
    """The machine at the beginning of the run."""

    processor: str
    cores: int
    memory: int
    system: str
    python: str
    load: float
    packages: dict[str, str]

    @property
    def quiet(self) -> bool:
        """Whether the load was low, so that no other program was running."""
        return self.load < BUSY

    def line(self) -> str:
        """Return one line about the machine."""
        load = "quiet" if self.quiet else f"NOT QUIET: load {self.load:.1f} at the start"
        return (
            f"{self.processor}, {self.cores} cores, {self.memory / 2**30:.0f} GB, {self.system}, "
            f"Python {self.python}; {load}"
        )


def this_machine() -> Machine:
    """Return a description of this machine."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        python=platform.python_version(),
        load=os.getloadavg()[0],
        packages={name: found for name in PACKAGES if (found := _version(name))},
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
