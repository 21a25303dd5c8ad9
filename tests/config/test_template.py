"""Templates: what they are made of, what they yield, and what their errors keep to themselves."""

from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crush_trio.config.errors import ExpansionFailed, printable
from crush_trio.config.template import CommandFailed, TemplateError, escape, parse, refuse_command

CHECKS = settings(derandomize=True, deadline=None, database=None)
ENVIRONMENT = {"NAME": "value", "EMPTY": "", "_x1": "under"}
OUTPUTS = {"whoami": "me\n", "echo ')'": "paren", "a $(b) (c)": "nested", "two": "1\n2\n\n"}


def fill(text):
    return parse(text).fill(ENVIRONMENT, OUTPUTS)


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("", ""),
        ("plain", "plain"),
        ("$NAME", "value"),
        ("${NAME}", "value"),
        ("a${NAME}b$_x1", "avaluebunder"),
        ("$NAME-$NAME", "value-value"),
        ("$UNSET", ""),
        ("x${UNSET}y", "xy"),
        ("${UNSET:-default}", "default"),
        ("${EMPTY:-default}", "default"),
        ("${NAME:-default}", "value"),
        ("${UNSET:-}", ""),
        ("${UNSET:-${EMPTY:-$NAME}}", "value"),
        ("${UNSET:-a}b}", "ab}"),
        (r"${UNSET:-a\}b}", "a}b"),
        ("${NAME:?must be set}", "value"),
        ("$(whoami)", "me"),
        ("<$(whoami)>", "<me>"),
        ("$(two)", "1\n2"),
        ("$(echo ')')", "paren"),
        ("$(a $(b) (c))", "nested"),
        ("${UNSET:-$(whoami)}", "me"),
        (r"\$NAME", "$NAME"),
        (r"costs 5\$", "costs 5$"),
        (r"a\b\\c", r"a\b\\c"),
        ('"$NAME" {x} `y`', '"value" {x} `y`'),
    ],
)
def test_a_template_yields(template, value):
    assert fill(template) == value


@pytest.mark.parametrize(
    "template",
    ["$", "a$", "$ x", "$1", "$$", "$?", "50$ off", "${}", "${1}", "${NAME", "${NAME:x}", "${NAME:=x}",
     "${NAME:-x", "${NAME:?x", "$(", "$(a", "$(a 'b)", "$()", "$( )", "$((1+1))", "${NAME:-$}"],
)  # fmt: skip
def test_whatever_else_begins_with_a_dollar_sign_is_an_error(template):
    with pytest.raises(TemplateError, match="expected"):
        parse(template)


@pytest.mark.parametrize("name", ["UNSET", "EMPTY"])
def test_a_required_variable_that_is_empty_is_an_error_with_its_message(name):
    with pytest.raises(TemplateError, match=rf"\$\{{{name}:\?\}}: ask the admin"):
        fill(f"${{{name}:?ask the admin}}")
    with pytest.raises(TemplateError, match="is not set"):
        fill(f"${{{name}:?}}")


def test_only_commands_whose_output_is_needed_are_asked_for():
    template = parse("$(one)${NAME:-$(two)}${UNSET:-$(three)}${EMPTY:-$(four)}")
    assert list(template.commands(ENVIRONMENT)) == ["one", "three", "four"]


def test_defaults_can_be_nested_but_not_without_end():
    parse("${A:-" * 20 + "}" * 20)
    with pytest.raises(TemplateError, match="at most 20"):
        parse("${A:-" * 21 + "}" * 21)


@CHECKS
@given(st.text())
@example("\\$")
@example("$(rm)")
def test_any_text_can_be_said_literally(text):
    assert fill(escape(text)) == text


@CHECKS
@given(st.text(st.characters(exclude_characters="$")))
def test_text_without_a_dollar_sign_stands_for_itself(text):
    assert fill(text) == text


PIECES = st.sampled_from(
    ["$", "{", "}", "(", ")", ":-", ":?", "\\", "'", '"', "NAME", "x", " ", "\n"]
)


@CHECKS
@given(st.lists(PIECES, max_size=20).map("".join))
def test_any_text_is_a_template_or_an_error(text):
    with suppress(TemplateError):
        assert isinstance(str(parse(text)), str)


# ── What is not told ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("sk-secret", "…"),
        ("sk-$NAME-secret", "…${NAME}…"),
        ("${NAME:-sk-secret}", "${NAME:-…}"),
        ("Bearer $(pass show x)", "…$(pass show x)"),
    ],
)
def test_a_template_is_shown_without_its_plain_text(template, shown):
    assert str(parse(template)) == shown
    assert "secret" not in repr(parse(template))


def test_the_error_about_a_lone_dollar_sign_repeats_nothing():
    with pytest.raises(TemplateError) as caught:
        parse("sk-secret$")
    assert "secret" not in str(caught.value)
    assert "character 10" in str(caught.value)


@CHECKS
@given(st.text(), st.text(), st.text())
def test_the_text_of_an_expansion_error_is_short_and_printable(file, key, reason):
    text = str(ExpansionFailed.at(file, key, reason))
    assert len(text.encode()) <= 512
    assert text.isprintable()


@CHECKS
@given(st.text(), st.integers(3, 40))
def test_printable_text_keeps_its_limit(text, limit):
    assert len(printable(text, limit).encode()) <= limit


def test_text_that_fits_is_not_cut():
    assert printable("a\x1b[31m\nb", 10) == "a?[31m?b"
    assert printable("x" * 10, 10) == "x" * 10
    assert printable("x" * 11, 10) == "x" * 7 + "…"


async def test_without_a_runner_no_command_is_run(tmp_path):
    with pytest.raises(CommandFailed, match="not available"):
        await refuse_command("true", {}, tmp_path)
