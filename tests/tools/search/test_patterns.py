"""Patterns for paths: what they match, and that no pattern takes long."""

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.tools.search.patterns import (
    LONGEST,
    BadPattern,
    PathPattern,
    Patterns,
    expand,
    split_base,
)


def matches(pattern, path):
    return Patterns.parse(pattern).matches(path.split("/"))


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("a.py", "a.py"),
        ("*.py", "a.py"),
        ("*.py", ".py"),
        ("a?c", "abc"),
        ("src/*.py", "src/a.py"),
        ("**/*.py", "a.py"),
        ("**/*.py", "x/y/z/a.py"),
        ("src/**/a.py", "src/a.py"),
        ("src/**", "src/a/b"),
        ("**", "a/b"),
        ("a**b", "axyb"),
        ("**/x/**/y/*", "q/x/1/x/2/y/z"),
        ("[abc].py", "b.py"),
        ("[a-c]1", "b1"),
        ("[!a-c]1", "d1"),
        ("[^a-c]1", "d1"),
        ("[]]", "]"),
        ("[a\\-z]", "-"),
        ("[a-]", "-"),
        ("v[[:digit:]]", "v7"),
        (r"\*.py", "*.py"),
        (r"\[x]", "[x]"),
        ("*.{ts,tsx}", "a.tsx"),
        ("{a,b/{c,d}}.py", "b/d.py"),
        ("{a", "{a"),
        ("a}", "a}"),
        ("./a/./b", "a/b"),
        ("ü*", "über"),
    ],
)
def test_pattern_matches(pattern, path):
    assert matches(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.py", "src/a.py"),
        ("a.py", "b/a.py"),
        ("a?c", "ac"),
        ("a?c", "a/c"),
        ("src/**", "src"),
        ("**/*.py", "a.pyc"),
        ("[!a-c]1", "b1"),
        ("[z-a]", "z"),
        ("a**b", "a/b"),
        ("*.{ts,tsx}", "a.js"),
        ("a.c", "abc"),
        ("*a*b*c", "aXbXcX"),
        ("x/**/y", "x/z"),
    ],
)
def test_pattern_does_not_match(pattern, path):
    assert not matches(pattern, path)


@pytest.mark.parametrize(
    "pattern",
    ["", "/", "[a", "[", "a\\", "*/../b", "[[:nonsense:]]", "x" * (LONGEST + 1), "a\0b"],
)
def test_pattern_without_meaning_is_refused(pattern):
    with pytest.raises(BadPattern):
        Patterns.parse(pattern)


def test_pattern_without_a_directory_can_be_meant_at_any_depth():
    assert Patterns.parse_anywhere("*.py").matches(["a", "b.py"])
    assert Patterns.parse_anywhere("src/*.py").matches(["src", "b.py"])
    assert not Patterns.parse_anywhere("src/*.py").matches(["a", "src", "b.py"])


def test_braces_stand_for_each_of_their_alternatives():
    assert expand("a{b,c{d,e}}f{1,}") == ("abf1", "abf", "acdf1", "acdf", "acef1", "acef")
    assert expand(r"\{a,b}") == (r"\{a,b}",)
    assert expand("{a}") == ("a",)


def test_braces_that_stand_for_too_much_are_refused():
    with pytest.raises(BadPattern):
        expand("{a,b}" * 30)
    with pytest.raises(BadPattern):
        expand("{" * 300 + ",}" * 300)


@pytest.mark.parametrize(
    ("pattern", "base", "rest"),
    [
        ("a/b/*.py", "a/b", "*.py"),
        ("*.py", "", "*.py"),
        ("a", "", "a"),
        ("a/b", "a", "b"),
        ("/x/**", "/x", "**"),
        ("/*.py", "/", "*.py"),
        ("a/{b,c}/d", "a", "{b,c}/d"),
        ("a/b*/c", "a", "b*/c"),
        ("../x/*", "../x", "*"),
        ("src/", "src", ""),
    ],
)
def test_directories_that_a_pattern_begins_with_are_split_off(pattern, base, rest):
    assert split_base(pattern) == (base, rest)


def test_depth_of_a_pattern_limits_the_walk():
    assert Patterns.parse("a/*/b").depth == 3
    assert Patterns.parse("{a,b/c}").depth == 2
    assert Patterns.parse("{a,**/c}").depth is None


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 400 + "b", ["a" * 255]),
        ("/".join(["**/a"] * 190) + "/b", ["a"] * 2000),
        ("/".join(["**/*a*a*ab"] * 50) + "/b", ["a" * 200] * 400),
        ("[a-z]*" * 150 + "!", ["z" * 255]),
        ("?*" * 400 + "!", ["z" * 255]),
    ],
)
def test_no_pattern_takes_long(pattern, path):
    parsed = PathPattern.parse(pattern)
    begun = perf_counter()
    assert not parsed.matches(path)
    assert perf_counter() - begun < 2


# ── Against a matcher that tries everything ─────────────────────────────────────────────────────


def is_any_depth(part):
    return len(part) > 1 and set(part) == {"*"}


def slow_match(pattern, path):
    if not pattern:
        return not path
    if is_any_depth(pattern[0]):
        return slow_match(pattern[1:], path) or (bool(path) and slow_match(pattern, path[1:]))
    return bool(path) and slow_name(pattern[0], path[0]) and slow_match(pattern[1:], path[1:])


def slow_name(pattern, name):
    if not pattern:
        return not name
    if pattern[0] == "*":
        return slow_name(pattern[1:], name) or (bool(name) and slow_name(pattern, name[1:]))
    if pattern[0] == "?":
        return bool(name) and slow_name(pattern[1:], name[1:])
    return bool(name) and pattern[0] == name[0] and slow_name(pattern[1:], name[1:])


NAMES = st.text("ab", min_size=1, max_size=4)
PARTS = st.one_of(st.just("**"), st.text("ab*?", min_size=1, max_size=5))


@given(st.lists(PARTS, min_size=1, max_size=5), st.lists(NAMES, min_size=1, max_size=5))
def test_matching_agrees_with_trying_everything(pattern, path):
    expected = slow_match([*pattern, "*"] if is_any_depth(pattern[-1]) else pattern, path)
    assert PathPattern.parse("/".join(pattern)).matches(path) is expected
