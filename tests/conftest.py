"""What the suite has in common: the same examples each time, and what it prints at the end."""

import pytest
from hypothesis import settings

EXPLORED = "explored"

# The same examples in every run: whether the suite is green says something about the code alone.
settings.register_profile("suite", derandomize=True, deadline=None, database=None)
settings.load_profile("suite")


@pytest.fixture
def report_exploration(request):
    """Return a function that takes note of an exploration for the summary of the whole run."""

    def note(exploration):
        request.node.user_properties.append((EXPLORED, (exploration.schedules, str(exploration))))

    return note


def pytest_collection_modifyitems(items):
    """Begin with the explorations: they take longest, and both cores should share them."""
    items.sort(key=lambda item: "report_exploration" not in getattr(item, "fixturenames", ()))


def pytest_terminal_summary(terminalreporter):
    rows = [
        (report.nodeid, value)
        for report in terminalreporter.getreports("passed")
        if report.when == "call"
        for name, value in report.user_properties
        if name == EXPLORED
    ]
    if not rows:
        return
    terminalreporter.section("explored schedules")
    for nodeid, (_, text) in rows:
        terminalreporter.write_line(f"{nodeid.rpartition('::')[2]}: {text}")
    total = sum(schedules for _, (schedules, _) in rows)
    terminalreporter.write_line(f"in total: {total} schedules without a violation")
