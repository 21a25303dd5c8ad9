"""Output of commands: bounded in memory, cut between characters, and honest about what is gone."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.tools.shell.output import BoundedOutput, Excerpt, width


def filled(data, limit, step=7):
    output = BoundedOutput(limit)
    for at in range(0, len(data), step):
        output.append(data[at : at + step])
    return output


def test_little_output_is_kept_as_it_is():
    output = filled(b"one\ntwo\n", 100)
    assert output.text() == "one\ntwo\n"
    assert (output.total, output.dropped) == (8, 0)


def test_of_much_output_the_beginning_and_the_end_are_kept_and_the_rest_is_counted():
    data = b"".join(b"line %d\n" % number for number in range(1000))
    output = filled(data, 200)
    head, marker, tail = output.text().split("\n\n")
    assert data.startswith(head.encode())
    assert data.endswith(tail.encode())
    kept = head.count("\n") + tail.count("\n")
    assert marker == f"… {1000 - kept} lines truncated …"
    assert output.dropped == len(data) - len(head) - len(tail)


def test_memory_does_not_grow_with_the_output():
    output = BoundedOutput(1000)
    chunk = b"x" * 65536
    tracemalloc.start()
    for _ in range(2000):
        output.append(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert output.total == 2000 * 65536
    assert peak < 4 * 65536


@given(st.text(alphabet="aé€😀\n", max_size=200), st.integers(2, 60), st.integers(1, 9))
def test_no_character_is_torn(text, limit, step):
    assert "\ufffd" not in filled(text.encode(), limit, step).text()


@given(st.binary(max_size=300), st.integers(2, 60), st.integers(1, 9))
def test_any_bytes_become_text_and_all_are_accounted_for(data, limit, step):
    output = filled(data, limit, step)
    assert output.total == len(data)
    assert 0 <= output.dropped <= max(0, len(data) - limit // 2)
    assert isinstance(output.text(), str)
    assert isinstance(output.text(10), str)


def test_bytes_that_are_no_text_are_replaced():
    assert filled(b"a\xff\xfeb", 100).text() == "a\ufffd\ufffdb"


# ── Columns ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("a\n", 2), ("", 0), ("😀", 2)]
)
def test_width_is_what_a_terminal_shows(text, columns):
    assert width(text) == columns


def test_text_that_fits_is_not_clipped():
    assert filled(b"x" * 30, 100).text(30) == "x" * 30


def test_clipping_keeps_both_ends_and_counts_the_lines_between():
    output = filled(b"".join(b"%03d\n" % number for number in range(100)), 1000)
    assert output.text(40) == (
        "000\n001\n002\n003\n004\n\n\n… 90 lines truncated …\n\n095\n096\n097\n098\n099\n"
    )


def test_clipping_adds_to_what_was_dropped_already():
    excerpt = Excerpt(head="a\n" * 10, lines=5, tail="b\n" * 10)
    assert excerpt.clipped(8) == Excerpt(head="a\na\n", lines=5 + 16, tail="b\nb\n")


@given(st.text(alphabet="ab日e\u0301\n", max_size=80), st.integers(2, 40))
def test_a_clipped_text_takes_no_more_than_its_columns(text, columns):
    excerpt = Excerpt(head=text).clipped(columns)
    assert width(excerpt.head) + width(excerpt.tail) <= columns
    if excerpt.lines is not None:
        assert text.startswith(excerpt.head)
        assert text.endswith(excerpt.tail)


def test_one_long_line_is_told_as_one():
    assert "… 1 line truncated …" in filled(b"x" * 100, 1000).text(10)
