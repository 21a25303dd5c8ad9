"""What the reader makes of a shell command, and whether a real shell agrees."""

import subprocess
from collections import Counter
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crush_trio.tools.shell.script import Unreadable
from crush_trio.tools.shell.script_parser import read_script


def commands(text):
    return [[word.text for word in command.words] for command in read_script(text).commands]


def word(text):
    (command,) = read_script(text).commands
    (word,) = command.words
    return word


# ── Words ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a", "a"),
        ("'a b'", "a b"),
        ('"a b"', "a b"),
        ("a\\ b", "a b"),
        ("a'b'\"c\"\\d", "abcd"),
        ("'a\\b'", "a\\b"),
        ('"a\\b"', "a\\b"),
        ('"a\\"b\\\\c\\$d"', 'a"b\\c$d'),
        ('"a\\\nb"', "ab"),
        ("a\\\nb", "ab"),
        ("''", ""),
        ("a$", "a$"),
        ('"$"', "$"),
        ("a#b", "a#b"),
    ],
)
def test_a_word_is_read_without_its_quotes(text, meant):
    assert word(text).text == meant
    assert word(text).literal


@pytest.mark.parametrize("text", ["$x", '"$x"', "${x}", "$(x)", "`x`", "$'x'", '$"x"', "$1", "$$"])
def test_a_word_that_the_shell_completes_is_not_literal(text):
    assert not word(text).literal


@pytest.mark.parametrize("text", ["~", "~a", "{a,b}", "[a]", "é", "a\x0bb", "x:~"])
def test_a_word_that_nobody_vouches_for_is_exotic(text):
    assert word(text).exotic


@pytest.mark.parametrize("text", ["'~'", "\\~", "'{a,b}'", '"[a]"', "'é'", "a~", "a~1"])
def test_quotes_take_the_meaning_out_of_characters(text):
    assert not word(text).exotic


def test_commands_inside_a_word_are_read_too():
    (outer,) = word('"a $(b "$(c)") `d \\`e\\``"').scripts[:1]
    assert outer.commands[0].words[0].text == "b"
    inner = outer.commands[0].words[1].scripts
    assert inner[0].commands[0].words[0].text == "c"


# ── Commands ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a b; c", [["a", "b"], ["c"]]),
        ("a&&b||c|d", [["a"], ["b"], ["c"], ["d"]]),
        ("a\n\nb", [["a"], ["b"]]),
        ("a # b; c\nd", [["a"], ["d"]]),
        ("a \\\n b", [["a", "b"]]),
        ("a \\\r\nb", [["a", "\r"], ["b"]]),
        ("if a; then b; fi", [["a"], ["b"]]),
        ("(a; b) | c", [["a"], ["b"], ["c"]]),
        ("f() { a; }", [["f"], ["a"]]),
        ("case x in p|q) a;; esac; b", [["case", "x", "in", "p"], ["a"], ["b"]]),
        ("a <<E b\nc\nE\nd", [["a", "b"], ["d"]]),
        ("a <<-E\n\tc\n\tE\nd", [["a"], ["d"]]),
        ("a <<E <<F\n1\nE\n2\nF\nd", [["a"], ["d"]]),
    ],
)
def test_a_text_is_split_into_its_commands(text, meant):
    assert commands(text) == meant


def test_a_here_document_belongs_to_the_script():
    script = read_script("a <<'E'\n$(b)\nE\n")
    assert [document.text for document in script.documents] == ["$(b)"]
    assert not script.documents[0].scripts
    assert not script.plain


def test_a_number_before_a_redirection_is_no_word_but_an_expansion_is():
    (command,) = read_script("a 2>b `c`1>d").commands
    assert [word.text for word in command.words] == ["a", "1"]
    assert [(each.descriptor, each.target.text) for each in command.redirections] == [
        ("2", "b"),
        ("", "d"),
    ]


@pytest.mark.parametrize(
    "text", ["'a", '"a', "`a", "$(a", "${a", "a )", "a >", "a\0b", "$'a", "a\\"]
)
def test_what_is_not_complete_is_unreadable(text):
    with pytest.raises(Unreadable):
        read_script(text)


@pytest.mark.heavy
def test_a_long_text_is_read_in_reasonable_time():
    assert len(read_script("a=" * 20_000).commands) == 1
    assert len(read_script("a;" * 20_000).commands) == 20_000


# ── A real shell ────────────────────────────────────────────────────────────────────────────────

HANDLER = """() { printf '%s\\0' "$@" "$END" >> "$LOG"; }"""
"""Bash calls this for every command it does not know, and here it knows none."""

PLAIN = st.sampled_from(
    [
        *(
            "l",
            "s",
            "a a",
            "l s",
            "1",
            "2",
            "-l",
            " ",
            "; l",
            "\ns",
            "&&l",
            "||s ",
            "| l",
            "#",
            "\t",
        ),
        *(
            " >/dev/null",
            " 2>/dev/null",
            "2>&1 ",
            "\\\n",
            "\\ ",
            "\\\\",
            '"$"',
            "'\n'",
            '"\\\n"',
            "@",
        ),
        *("'a b'", '"a"'),
    ]
)
STRANGE = st.sampled_from(
    [
        *(
            "'",
            '"',
            "\\",
            "\\\r\n",
            "$",
            "`",
            "${",
            "}",
            "$(",
            "(",
            ")",
            ">",
            "<",
            "&",
            "*",
            "~",
            "{a,s}",
        ),
        *(
            "!",
            "\r",
            "\x0b",
            "\xa0",
            "é",
            "=",
            "s=",
            "if ",
            "<<l\n",
            "\nl\n",
            "$'",
            "[",
            "]",
            "?",
            "^",
        ),
        *("", "", "", "\\\n"),
    ]
)
ROW = st.lists(PLAIN, max_size=6).map("".join)
TEXTS = st.tuples(st.just("l "), ROW, STRANGE, ROW, STRANGE, ROW).map("".join)


def run_by_bash(text, directory):
    """Return what bash ran, and whether it could read all of it."""
    log = directory / "log"
    log.write_bytes(b"")
    env = {
        "PATH": "/nowhere",
        "LOG": str(log),
        "END": "\1",
        "LC_ALL": "C.UTF-8",
        "BASH_FUNC_command_not_found_handle%%": HANDLER,
    }
    done = subprocess.run(
        ["/bin/bash", "-c", "--", text],
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=10,
        check=False,
    )
    ran = [part.split("\0")[:-1] for part in log.read_bytes().decode().split("\1\0")[:-1]]
    return ran, b"syntax error" not in done.stderr and b"unexpected EOF" not in done.stderr


def vouched(script):
    """Whether the reader says exactly what runs: the conditions that an inert command must meet."""
    words = chain.from_iterable(command.words for command in script.commands)
    return (
        script.plain
        and all(command.words and not command.assignments for command in script.commands)
        and not any(
            command.words[0].text == "[" or "/" in command.words[0].text
            for command in script.commands
        )
        and all(word.literal and not word.exotic and not word.globs for word in words)
        and all(
            each.target.literal
            and each.target.text in ({"1", "2"} if "&" in each.operator else {"/dev/null"})
            for command in script.commands
            for each in command.redirections
        )
    )


def expected(script):
    """Return what runs if every command succeeds: all but what follows `||`."""
    ran, skipped = [], False
    for before, command in zip((None, *script.commands), script.commands, strict=False):
        if before is not None and before.operator != "|":
            skipped = before.operator == "||" or (skipped and before.operator == "||")
        if not skipped:
            ran.append([word.text for word in command.words])
    return ran


@pytest.mark.slow
@pytest.mark.item("L18")
@settings(
    derandomize=True,
    max_examples=500,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(text=TEXTS)
def test_bash_runs_what_the_reader_vouches_for_and_nothing_else(text, tmp_path):
    try:
        script = read_script(text)
    except Unreadable:
        return
    if not script.commands or not vouched(script):
        return
    ran, whole = run_by_bash(text, tmp_path)
    meant = expected(script)
    if whole:
        assert Counter(map(tuple, ran)) == Counter(map(tuple, meant))
    else:
        assert not Counter(map(tuple, ran)) - Counter(map(tuple, meant))
