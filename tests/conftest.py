"""What the suite prints about itself at the end: how many schedules were explored, and how."""

import pytest

EXPLORED = "explored"


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
