"""Expressions in ripgrep's syntax, translated for Python."""

import re

import pytest

from crush_trio.tools.search.expressions import NotTranslatable, SpansLines, to_python


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        (r"a\.b[\w.-]+", "a.bc-", "axb"),
        ("[[:digit:]_]x", "_x", "ax"),
        ("[[:^digit:]]x", "ax", "1x"),
        ("[^[:^digit:]]x", "1x", "ax"),
        ("a(?i)b", "aB", "AB"),
        ("a(?i)b|c", "C", "AB"),
        ("(?:(?i)b)c", "Bc", "bC"),
        ("(?i)b(?-i)c", "Bc", "BC"),
        ("(?iu:b)c", "Bc", "bC"),
        (r"\x{e9}\u{E9}", "éé", "é"),
        (r"\<b\>", "a b", "ab"),
        (r"b\z", "ab", "ba"),
        ("(?<one>a)(?<=a)b(?!c)", "ab", "abc"),
        (r"[\]\n]", "]", "["),
        ("[]a]", "]", "b"),
        (r"\\p\(\?i\)", r"\p(?i)", "p"),
    ],
)
def test_an_expression_means_the_same(pattern, matches, others):
    expression = re.compile(to_python(pattern))
    assert expression.search(matches)
    assert not expression.search(others)


@pytest.mark.parametrize("pattern", [r"\p{L}", r"[\PL]", "(?U)a", "(?-u)a", "[a[b]]", "[a--b]"])
def test_what_only_ripgrep_has_is_named(pattern):
    with pytest.raises(NotTranslatable):
        to_python(pattern)


@pytest.mark.parametrize("pattern", [r"a\nb", "a\nb"])
def test_no_expression_spans_lines(pattern):
    with pytest.raises(SpansLines):
        to_python(pattern)


@pytest.mark.parametrize("pattern", ["\\", "[", "[^", "(?", "(?i", "((", "a)", "[[:x", "(?<a"])
def test_what_is_incomplete_is_left_to_python(pattern):
    with pytest.raises((re.error, NotTranslatable)):
        re.compile(to_python(pattern))
