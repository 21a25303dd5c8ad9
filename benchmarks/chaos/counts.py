"""The table of what happened in the rounds of each scenario."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

ORDER: Final = (
    "rounds",
    "prompts accepted",
    "takeovers",
    "requests",
    "forwarded requests",
    "reconnects",
    "resyncs",
    "texts compared",
)
"""The first rows, in this order; the others follow by name."""


def table(counts: Mapping[str, Counter[str]]) -> str:
    """Return the counts of scenarios, by their names: a column for each, and one for all."""
    columns = {**counts, "all": sum(counts.values(), Counter[str]())}
    rows = [*ORDER, *sorted(columns["all"].keys() - set(ORDER))]
    width = max(map(len, rows))
    head = " " * width + "".join(f"{name:>9}" for name in columns)
    cells = ("".join(f"{each[row]:>9}" for each in columns.values()) for row in rows)
    lines = (f"{row:<{width}}{line}" for row, line in zip(rows, cells, strict=True))
    return "\n".join((head, *lines))
