"""The head of a skill's file is YAML, and what is wrong with it is said in a sentence."""

import re

import pytest

from crush_trio.integrations.front_matter import BadFrontMatter, FrontMatter, read_front_matter

pytestmark = pytest.mark.item("I7")


def head(*lines, name="name: jq", description="description: JSON queries"):
    return "\n".join(["---", name, description, *lines, "---", "", "# jq", "Use it.", ""])


def test_name_and_description_are_enough():
    assert read_front_matter(head()) == FrontMatter(name="jq", description="JSON queries")


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("plain words", "plain words"),
        ("  spaced out  ", "spaced out"),
        ("12", "12"),
        ("a # comment", "a"),
        ("a#b", "a#b"),
        ("http://x.invalid/y", "http://x.invalid/y"),
        ('"when: this # happens"', "when: this # happens"),
        ('"a \\"b\\" \\u00e9" # c', 'a "b" é'),
        ("'it''s: so'", "it's: so"),
        ("it's", "it's"),
        ("true", "true"),
        ("1.0", "1.0"),
        ('"\\x41"', "A"),
        (">-\n  folded\n  words", "folded words"),
        ("|\n  a\n  b", "a\nb"),
        ("one\n  two", "one two"),
        ("&a b", "b"),
        ("!!python/name:os.system x", "x"),
    ],
)
def test_a_value_is_the_words_it_is_written_with(written, means):
    front = read_front_matter(head(description=f"description: {written}"))
    assert front.description == means


@pytest.mark.parametrize(("written", "value"), [("true", True), ("False", False)])
def test_switches_are_true_or_false(written, value):
    front = read_front_matter(
        head(f"user-invocable: {written}", f"disable-model-invocation: {written}")
    )
    assert (front.user_invocable, front.advertised) == (value, not value)


def test_what_means_nothing_here_may_hold_anything():
    lines = [
        "# a comment",
        "",
        "metadata:",
        '  author: "me"',
        "  # more",
        "allowed-tools: [Read, Grep]",
        "tags:",
        "- a: b",
        "about: >",
        "  folded",
        "license: MIT",
    ]
    assert read_front_matter(head(*lines)).name == "jq"


def test_other_line_ends_and_a_mark_at_the_beginning_are_no_matter():
    text = "\ufeff" + head().replace("\n", "\r\n")
    assert read_front_matter(text).description == "JSON queries"


LONG = "x" * 65
FLAWED = {
    "": ("description is missing", None),
    "# jq": ("does not begin with a line of three hyphens", ("dir", "jq")),
    "Use it.\nAlways.\n\nMore": ("does not begin with a line", ("dir", "Use it. Always.")),
    "---\nname: jq\n": ("the second line of three hyphens is missing", None),
    head(name="title: jq"): ("name is missing: dir is used", ("dir", "JSON queries")),
    head(name="name:"): ("name is missing: dir is used", ("dir", "JSON queries")),
    head(name="name: j_q"): ("letters, digits and single hyphens", ("j-q", "JSON queries")),
    head(name="name: My Skill!"): ("My-Skill is used", ("My-Skill", "JSON queries")),
    head(name="name: ../jq"): ("jq is used", ("jq", "JSON queries")),
    head(name="name: //"): ("name is missing", None),
    head(name=f"name: {LONG}"): ("name has more than 64", ("x" * 64, "JSON queries")),
    head(description=""): ("description is missing: the first words", ("jq", "Use it.")),
    head(description='description: "  "'): ("description is missing", ("jq", "Use it.")),
    head(description=f"description: {'x' * 1025}"): ("more than 1024", ("jq", "x" * 1024)),
    head(f"compatibility: {'x' * 501}"): ("compatibility has more than 500", ("jq", None)),
    head("user-invocable: maybe"): ("user-invocable must be true or false", ("jq", None)),
    head("just words"): ("line 4: this is not YAML", ("jq", "JSON queries")),
    head(description="description:\n- one"): ("must be a text, not a list", ("jq", "one")),
    head(description="description: {a: b}"): ("description must be a text", ("jq", "Use it.")),
    head(description="description: use when: now\n  or later"): (
        "line 3: .* a colon in it needs quotes",
        ("jq", "use when: now or later"),
    ),
    head(description='description: "open'): ("this is not YAML", ("jq", "open")),
    head(description="description: \x01x"): ("is not YAML", ("jq", "x")),
    head("a: &a [*a]"): ("line 4: this is not YAML", ("jq", "JSON queries")),
    head("a: " + "[" * 8000): ("is not YAML", ("jq", "JSON queries")),
    head("a: " + "x" * 8192): ("more than 8192", None),
    "---\njq\n---\nUse it.": ("expected lines with a key", ("dir", "Use it.")),
    "---\n---\n": ("description is missing", None),
}


@pytest.mark.parametrize("text", FLAWED, ids=range(len(FLAWED)))
def test_a_usual_flaw_is_corrected_and_told(text):
    """Only where nothing usable is left, the file is an error."""
    told, read = FLAWED[text]
    if read is None:
        with pytest.raises(BadFrontMatter, match=told):
            read_front_matter(text, "dir")
        return
    front = read_front_matter(text, "dir")
    name, description = read
    assert re.search(told, "; ".join(front.flaws))
    assert front.name == name
    assert description in {None, front.description}


@pytest.mark.parametrize("length", [64, 1])
def test_a_name_may_be_as_long_as_it_may_be(length):
    assert read_front_matter(head(name=f"name: {'x' * length}")).name == "x" * length
