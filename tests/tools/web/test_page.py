"""Pages as Markdown and as text: what they say, and that no page takes long."""

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.tools.web.html import End, Start, Text, tokens
from crush_trio.tools.web.page import to_markdown, to_text


@pytest.mark.parametrize(
    ("page", "markdown"),
    [
        ("<p>one<p>two", "one\n\ntwo"),
        ("<h2>Title</h2>text", "## Title\n\ntext"),
        ("a<br>b", "a\nb"),
        ("<p>  many\n\n blanks\t</p>", "many blanks"),
        ("a&nbsp;&amp;&lt;b&gt; &#228;", "a &<b> ä"),
        ("<b>bold</b> <i>it</i> <code>x</code> <del>d</del>", "**bold** *it* `x` ~~d~~"),
        ("x<b> y </b>z", "x **y** z"),
        ("<b></b><i> </i>x", "x"),
        ("<a href='/p?q=1'>t</a>", "[t](https://h.example/p?q=1)"),
        ("<a href='x y'>t</a>", "[t](https://h.example/d/x%20y)"),
        ("<a href='#part'>t</a> <a>u</a>", "t u"),
        ("<a href='javascript:x'>t</a>", "t"),
        ("<a href='http://[bad'>t</a>", "t"),
        ("<a href=x><b>t</b></a>", "[**t**](https://h.example/d/x)"),
        ("<img src=a.png alt='A  b'><img src=b.png>", "![A b](https://h.example/d/a.png)"),
        ("<ul><li>a<li>b</ul>", "- a\n- b"),
        ("<p>x<ul><li>a<ul><li>b</ul><li>c</ul>y", "x\n\n- a\n  - b\n- c\n\ny"),
        ("<ol><li>a<p>more<li>b</ol>", "1. a\n\n   more\n2. b"),
        ("<blockquote><p>a<br>b<p>c</blockquote>d", "> a\n> b\n\n> c\n\nd"),
        ("<pre>  x\n    &lt;y&gt;</pre>", "```\n  x\n    <y>\n```"),
        ("<pre><code>a ``` b</code></pre>", "````\na ``` b\n````"),
        (
            "<table><tr><th>A<th>B<tr><td>1<td><p>2|3</p><tr><td><td>x</table>",
            "| A | B |\n| --- | --- |\n| 1 | 2\\|3 |\n|  | x |",
        ),
        ("a<hr>b", "a\n\n---\n\nb"),
        ("<script>if (a < b) '<p>'</script>x<style>p{}</style>", "x"),
        ("<SCRIPT>x</script >y", "y"),
        ("<script>never closed", ""),
        ("a<!-- <p>hidden --> b", "a b"),
        ("a<!-- never closed", "a"),
        ("<!doctype html><?xml x?>a", "a"),
        ("a < b and <3", "a < b and <3"),
        ("<a title='>' href=\"x\">t</a>", "[t](https://h.example/d/x)"),
        ("<div title='never closed>x", ""),
        ("</p></b></ul></table>x", "x"),
        ("<b>a<p>b</b>c", "**a**\n\nbc"),
        ("&#" + "9" * 5000 + ";", "&#" + "9" * 5000 + ";"),
        ("", ""),
    ],
)
def test_page_becomes_markdown(page, markdown):
    assert to_markdown(page, base="https://h.example/d/p") == markdown


def test_page_becomes_text_without_marks_and_links():
    page = (
        "<h1>T</h1><p>a <b>b</b> <a href=x>c</a><ul><li>1<li>2</ul><pre> x</pre><img alt=i src=y>"
    )
    assert to_text(page) == "T\n\na b c\n\n- 1\n- 2\n\n x\n\ni"


def test_tokens_know_their_attributes():
    start, text, end = tokens('<A HREF=x Title=\'a "b"\' c="1&amp;2" d>t</A>')
    assert (start.name, text, end) == ("a", Text("t"), End("a"))
    wanted = {"href": "x", "title": 'a "b"', "c": "1&2", "d": "", "e": ""}
    assert {name: start.attribute(name) for name in wanted} == wanted
    assert isinstance(start, Start)


def test_work_on_a_page_can_be_ended():
    def check():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        to_markdown("x", check=check)


FRAGMENTS = (
    *("<div>", "<b>", "</b>", "<a href=x>", "</a>", "<li>", "<ul>", "</ul>", "<ol>", "<td>"),
    *("<tr>", "<table>", "</table>", "<pre>", "</pre>", "<!--", "-->", "<!", "<", "</", "'", '"'),
    *("=", "x='", "&", "&#9", "<script>", "</script", "<a x='\"", "<blockquote>", "</p>", " "),
    *("\n", "a", "<h1>", "`", "<br>", "<img alt=x src=y>", "|", "<svg/>", "<svg>", " = ", "<pre"),
)


@pytest.mark.slow
@pytest.mark.parametrize("first", FRAGMENTS)
def test_no_page_takes_long(first):
    """A quadratic step would take minutes for these, not a second."""
    for second in FRAGMENTS[::10]:
        page = (first + second + "x") * 4000
        begun = perf_counter()
        to_markdown(page)
        assert perf_counter() - begun < 5, (first, second)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
def test_every_page_can_be_read(page):
    markdown = to_markdown(page)
    assert markdown == markdown.strip("\n")
    to_text(page)
