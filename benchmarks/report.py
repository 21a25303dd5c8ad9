"""Reports: the figures of a run as a text table, as JSON, and as a section of docs/performance.md.

Plain functions of values, so that all three agree.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import asdict, frozen

from benchmarks.figures import COUNT, MS, RATE, TIMES, Figure
from benchmarks.machine import Machine

BEGIN: Final = "<!-- figures: begin -->"
END: Final = "<!-- figures: end -->"

QUICK: Final = "A quick run: sizes are smaller than their names say; do not quote these figures."

_VERDICTS: Final = {True: "met", False: "**missed**", None: ""}


class NoMarkers(Exception):
    """A page has no markers for the figures."""


@frozen(kw_only=True)
class Report:
    """The results of one run."""

    machine: Machine
    day: str
    seconds: float
    own: str
    """The name of this project's server."""
    other: str = ""
    """The name of a third server, if there was one."""
    titles: Mapping[str, str]
    """The title of each workload that was run, by its letter."""
    figures: Sequence[Figure]
    left_out: Sequence[str]
    quick: bool = False

    @property
    def missed(self) -> list[Figure]:
        """The figures whose promise was not kept."""
        return [figure for figure in self.figures if figure.met is False]


# ── Numbers ─────────────────────────────────────────────────────────────────────────────────────


def number(value: float, unit: str) -> str:
    """Return *value* as text, with three digits and a suitable unit."""
    if unit == COUNT:
        return f"{value:g}"
    if unit == RATE:
        return f"{value:.3g}/s"
    if unit == TIMES:
        return f"{value:.2f}"
    if unit == MS:
        return f"{value / 1e3:.2f} s" if value >= 1000 else f"{value:.3g} ms"
    if abs(value) >= 2**20:
        return f"{value / 2**20:.1f} MB"
    return f"{value / 1024:.1f} KB" if abs(value) >= 1024 else f"{value:.0f} B"


def spread(values: Sequence[float], unit: str) -> str:
    """Return the lowest and the highest value as text; "" if there is only one value."""
    if len(values) < 2 or min(values) == max(values):
        return ""
    return f" ({number(min(values), unit)} to {number(max(values), unit)})"


def with_spread(values: Sequence[float], middle: float | None, unit: str) -> str:
    """Return a figure with its spread; "" if there is none."""
    return "" if middle is None else number(middle, unit) + spread(values, unit)


def promise(figure: Figure) -> str:
    """Return the promise about a figure as text."""
    if figure.promise is None:
        return ""
    limit = figure.promise.limit
    if figure.promise.of_ratio:
        return f"ratio ≤ {limit:.2g}"
    return f"{'≥' if figure.promise.least else '≤'} {number(limit, figure.unit)}"


def cells(figure: Figure, *, other: bool = False) -> tuple[str, ...]:
    """Return a figure as the cells of its row."""
    return (
        figure.name,
        with_spread(figure.ours, figure.value, figure.unit),
        number(_middle(figure.theirs), figure.unit) if figure.theirs else "",
        with_spread(figure.ratios, figure.ratio, TIMES),
        *(_others(figure) if other else ()),
        promise(figure),
        _VERDICTS[figure.met],
    )


def _others(figure: Figure) -> tuple[str, str]:
    """Return the cells of the third server."""
    ratios = figure.others_ratios
    return (
        with_spread(figure.others, _middle(figure.others), figure.unit) if figure.others else "",
        with_spread(ratios, _middle(ratios), TIMES) if ratios else "",
    )


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


# ── Output ──────────────────────────────────────────────────────────────────────────────────────


def heads(report: Report) -> tuple[str, ...]:
    """Return the heads of the columns."""
    others = (report.other, "ratio") if report.other else ()
    return ("", report.own, "baseline", "ratio", *others, "promise", "")


def text_table(report: Report) -> str:
    """Return the report for a terminal."""
    rows = [heads(report), *(cells(each, other=bool(report.other)) for each in report.figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [report.machine.line(), QUICK if report.quick else ""]
    letter = ""
    for figure, row in zip((None, *report.figures), rows, strict=True):
        if figure is not None and figure.workload != letter:
            letter = figure.workload
            lines += ["", f"({letter}) {report.titles[letter]}"]
        lines.append(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    lines += ["", *(f"left out: {what}" for what in report.left_out)]
    missed = len(report.missed)
    lines.append(
        f"{len(report.figures)} figures in {report.seconds:.0f} s, {missed} promises missed"
    )
    return "\n".join(lines)


def markdown(report: Report) -> str:
    """Return the report as a section of a page."""
    lines = [
        f"{report.day}; {report.machine.line()}. One run of {report.seconds:.0f} s; medians, and in "
        "brackets the lowest and the highest of the rounds.",
        "",
        "Versions: " + ", ".join(f"{k} {v}" for k, v in report.machine.packages.items()) + ".",
    ]
    letter = ""
    for figure in report.figures:
        if figure.workload != letter:
            letter = figure.workload
            lines += [
                "",
                f"### ({letter}) {report.titles[letter]}",
                "",
                _row(heads(report)),
                _row(["---"] * len(heads(report))),
            ]
        lines.append(_row(cells(figure, other=bool(report.other))))
    lines += ["", *(f"Left out: {what}." for what in report.left_out)]
    return "\n".join(lines).rstrip() + "\n"


def _row(values: Sequence[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def replaced(page: str, section: str) -> str:
    """Return *page* with *section* between its markers; raise `NoMarkers` if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise NoMarkers(f"the page needs a line {BEGIN} and, below it, a line {END}")
    return f"{before}{BEGIN}\n\n{section}\n{END}{after}"


def as_json(report: Report) -> dict[str, Any]:
    """Return the report for JSON: every round of every figure."""
    return {
        "machine": asdict(report.machine),
        "day": report.day,
        "seconds": round(report.seconds, 1),
        "own": report.own,
        "target": report.other,
        "left_out": list(report.left_out),
        "figures": [
            {
                "workload": figure.workload,
                "name": figure.name,
                "unit": figure.unit,
                "own": list(figure.ours),
                "baseline": list(figure.theirs),
                "target": list(figure.others),
                "ratio": figure.ratio,
                "limit": None if figure.promise is None else figure.promise.limit,
                "limit_is_of_ratio": figure.promise is not None and figure.promise.of_ratio,
                "limit_is_lowest": figure.promise is not None and figure.promise.least,
                "met": figure.met,
            }
            for figure in report.figures
        ],
    }
