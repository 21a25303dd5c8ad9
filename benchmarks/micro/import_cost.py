"""What importing the run core costs, compared with importing Trio, which it cannot do without.

Each import is done by a new interpreter, in alternation. The least of several processor times counts:
a busy machine adds to a time and never takes from it. Run it with
`python -m benchmarks.micro.import_cost`.
"""

import os
import subprocess
import sys
from typing import Final

from benchmarks.micro.timing import Ratio, report

ROUNDS: Final = 10
TARGET: Final = 2.0
BASE: Final = "import trio"
STATEMENTS: Final = {
    "front": "import crush_trio",
    "core": "from crush_trio import open_workspace",
}


def cost(statement: str) -> float:
    """Return the seconds of processor time that *statement* takes in a new interpreter."""
    program = (
        f"import time; began = time.process_time()\n{statement}\nprint(time.process_time() - began)"
    )
    environ = {**os.environ}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has been compiled
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True, env=environ
    )
    return float(ran.stdout)


def measure(rounds: int = ROUNDS) -> list[Ratio]:
    """Compare each statement with the import of Trio."""
    statements = (BASE, *STATEMENTS.values())
    for statement in statements:
        cost(statement)  # the first one may have to compile
    times = [{statement: cost(statement) for statement in statements} for _ in range(rounds)]
    least = {statement: min(each[statement] for each in times) for statement in statements}
    return [
        Ratio(name=name, small=[least[BASE]], large=[least[statement]], target=TARGET)
        for name, statement in STATEMENTS.items()
    ]


def main() -> int:
    """Print the costs; return 1 if one of them misses its target."""
    return report(f"`{BASE}`, compared with `{'` and `'.join(STATEMENTS.values())}`:", measure())


if __name__ == "__main__":
    sys.exit(main())
