"""New lines are indented as the file indents, however the model quoted it."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crush_trio.tools.files.matching import Indentation

CHECKS = settings(derandomize=True, deadline=None, database=None)

UNITS = st.sampled_from(["\t", "  ", "    ", "        "])
LEVELS = st.lists(st.integers(0, 4), min_size=1, max_size=6)


def rendered(levels, unit, base):
    return [f"{unit * (level + base)}line" for level in levels]


@CHECKS
@given(LEVELS, LEVELS, UNITS, UNITS, st.integers(0, 2), st.integers(0, 2))
def test_a_block_in_one_manner_becomes_a_block_in_the_other(
    quoted, new, unit, file_unit, base, file_base
):
    assume(len(set(quoted)) > 1)
    indentation = Indentation.between(
        rendered(quoted, unit, base), rendered(quoted, file_unit, file_base)
    )
    adapted = [indentation.adapted(line) for line in rendered(new, unit, base)]
    assert adapted == rendered(new, file_unit, file_base)


@CHECKS
@given(LEVELS, LEVELS, UNITS, st.integers(0, 2), st.integers(0, 2))
def test_a_block_that_was_only_shifted_is_shifted_back(quoted, new, unit, base, file_base):
    indentation = Indentation.between(
        rendered(quoted, unit, base), rendered(quoted, unit, file_base)
    )
    adapted = [indentation.adapted(line) for line in rendered(new, unit, base)]
    assert adapted == rendered(new, unit, file_base)


@CHECKS
@given(st.lists(st.sampled_from(["", " ", "  ", "\t", "   "])), st.text(" \tab"))
def test_nothing_changes_where_nothing_differs(indents, line):
    lines = [f"{indent}x" for indent in indents]
    expected = line if line.strip() else ""
    assert Indentation.between(lines, lines).adapted(line) == expected


@pytest.mark.parametrize(
    ("quoted", "meant", "new", "adapted"),
    [
        ("    a", "\ta", "        b", "\t\tb"),
        ("\ta", "    a", "\t\tb", "        b"),
        ("a", "\ta", "    b", "\t\tb"),
        ("a", "\ta", "b", "\tb"),
        ("  a", "a", "b", "b"),
        ("    a", "        a", "  b", "      b"),
        ("a", "a", "   ", ""),
    ],
)
def test_one_line_tells_enough(quoted, meant, new, adapted):
    assert Indentation.between([quoted], [meant], [new]).adapted(new) == adapted
