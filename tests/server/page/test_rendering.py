"""Messages as HTML: what becomes of Markdown, code and changes, hostile ones included; what is kept."""

import json
import re
import subprocess
import sys
from functools import partial
from html import unescape
from html.parser import HTMLParser

import attrs
import pytest
import trio

from crush_trio.server.page import code, rendering
from crush_trio.server.page.code import code_block, code_lines, language_of, language_of_file
from crush_trio.server.page.diff import LINES_MOST, diff_of_contents, diff_table
from crush_trio.server.page.markdown import TEXT_MOST, markdown
from crush_trio.server.page.rendering import Rendering, render_message, render_part
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Gate, Pause, Say
from crush_trio.wire.ids import MessageId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    BinaryPart,
    Message,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
)

ELEMENTS = {
    *("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "br"),
    *("em", "strong", "s", "code", "pre", "a", "span"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {"href", "rel", "target", "class", "start", "data-lang", "colspan", "hidden"}
VOID = {"hr", "br"}


class Reader(HTMLParser):
    """Reads HTML as a browser does, and refuses what a message must not contain."""

    def __init__(self):
        super().__init__()
        self.elements, self.open, self.links, self.text = [], [], [], ""

    def handle_starttag(self, tag, attrs):
        assert tag in ELEMENTS, tag
        given = dict(attrs)
        assert set(given) <= ATTRIBUTES, given
        if tag == "a":
            assert re.match(r"(https?://|mailto:)", given["href"], re.IGNORECASE), given
            assert given["rel"] == "noopener noreferrer nofollow"
            self.links.append(given["href"])
        self.elements.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        raise AssertionError(data)

    def handle_decl(self, decl):
        raise AssertionError(decl)

    def handle_pi(self, data):
        raise AssertionError(data)

    def unknown_decl(self, data):
        raise AssertionError(data)


def read(html):
    """Return what a browser makes of *html*, which must be whole and harmless."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


# ── Markdown ────────────────────────────────────────────────────────────────────────────────────


def test_markdown_is_what_authors_mean():
    html = markdown("# A\n\n*b* **c** ~~d~~ `e`\n\n1. x\n2. y\n\n> q\n\n|a|b|\n|:-|-:|\n|1|2|\n")
    found = read(html).elements
    assert {"h1", "em", "strong", "s", "code", "ol", "li", "blockquote", "table", "td"} <= {*found}
    assert '<td class="align-right">2</td>' in html
    assert "style" not in html


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "a <b onclick=x>c</b> <!-- d --> <?php ?> <![CDATA[x]]> <!DOCTYPE x>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](java\tscript:alert(1))",
    "[a](&#106;avascript:alert(1))",
    "[a](&#x6A&#x61;vascript:alert(1))",
    "[a](vbscript:x) [b](file:///etc/passwd) [c](data:text/html,x) [d](blob:x)",
    "[a](/v1/control) [b](//evil.example) [c](?x) [d](#x) [e](\\\\evil)",
    "![a](data:image/svg+xml;base64,PHN2Zz4=)",
    "![a](javascript:alert(1))",
    "<javascript:alert(1)>",
    '<https://a.example/" onclick="x>',
    '[a](https://a.example "x\\" onclick=\\"y")',
    "[a]: javascript:alert(1)\n\n[a]",
    '![x" onerror="alert(1)](https://a.example/p.png)',
    '```"><script>alert(1)</script>\nx\n```',
    "```python\n</code></pre><script>alert(1)</script>\n```",
    "    <script>indented</script>",
    "`<script>`",
    "|<script>|\n|-|\n|<img src=x>|",
    "# <a name=x id=y>\n{#id .class}",
    "&lt;script&gt; &#60;script&#62;",
    "\0 \ud800 \u202e \ufeff",
    "</div></body></html>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_a_model_writes_becomes_more_than_text(text):
    html = markdown(text)
    read(html)
    assert not re.search(r"<(script|img|svg|style|iframe|form|input|base|meta|link)\b", html)


@pytest.mark.parametrize("language", [None, "python"])
def test_code_shows_the_characters_that_would_change_the_order_of_a_line(language):
    text = re.sub("<[^>]+>", "", "".join(code_lines("a = 'b\u202ec'\n\u2067d", language)))
    assert unescape(text) == "a = 'b<U+202E>c'\n<U+2067>d"


def test_links_lead_to_the_web_and_to_mail_and_tell_nothing():
    html = markdown("[a](https://a.example/?b=c&d) <http://e.example> [m](mailto:x@y.example)")
    assert read(html).links == [
        "https://a.example/?b=c&d",
        "http://e.example",
        "mailto:x@y.example",
    ]
    assert html.count('target="_blank"') == 3


def test_a_picture_of_the_web_is_a_link_and_not_loaded():
    html = markdown("![a <b>](https://a.example/p.png)")
    assert read(html).links == ["https://a.example/p.png"]
    assert "a &lt;b&gt;</a>" in html
    assert "src" not in html


def test_what_is_nested_too_deeply_stays_text():
    for text in ("> " * 5000 + "x", "- " * 5000 + "x", "*" * 5001 + "x" + "*" * 5001, "[" * 5000):
        reader = read(markdown(text))
        assert len(reader.elements) < 200


@pytest.mark.parametrize(
    "text", ["x" * 1_000_000, "x" * TEXT_MOST + "<b>", "ä" * (TEXT_MOST // 2 + 1)]
)
def test_a_text_that_is_too_long_is_shown_as_it_is(text):
    html = markdown(text)
    assert html.startswith('<pre class="plain">')
    assert read(html).text.strip() == text


def test_a_small_table_cannot_become_a_huge_one():
    wide = "|".join("a" * 5000)
    text = f"{wide}\n{'|'.join('-' * 5000)}\n" + "a\n" * 20000
    assert len(markdown(text)) < 4_000_000


# ── Code ────────────────────────────────────────────────────────────────────────────────────────


def test_code_has_the_classes_of_its_tokens_and_the_same_text():
    html = code_block('def f():\n    return "<b>"\n', "python")
    assert '<pre class="code" data-lang="python"><code>' in html
    assert '<span class="hl-k">def</span>' in html
    assert read(html).text == 'def f():\n    return "<b>"\n\n'


def test_a_fence_names_its_language():
    assert 'data-lang="javascript"' in markdown("```js {1,2}\nlet a\n```")
    assert "data-lang" not in markdown("```none-such\nlet a\n```")


@pytest.mark.parametrize("language", sorted(code._LANGUAGES))
def test_every_language_is_known_and_keeps_its_lines(language):
    text = 'a = "b" /* c\nd */ # e\n\n<f g="h">&amp;</f>\n\'i\n\x00\x0b\x0c\u2028\r\n\n  x'
    lines = code_lines(text, language)
    assert len(lines) == text.count("\n") + 1
    assert read("".join(lines)).text == text.replace("\r\n", "\n").replace("&amp;", "&amp;")
    for line in lines:
        read(line)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("x = 1\n" * 20_000, "long"), ("x = '" + "a" * 3000 + "'", "a long line")],
)
def test_code_that_is_too_long_is_plain(text, reason):
    assert "span" not in code_block(text, "python"), reason


def test_code_that_takes_too_long_is_plain_from_there_on(monkeypatch):
    times = iter(range(100))
    monkeypatch.setattr(code, "monotonic", lambda: next(times))
    text = "x = 1\n" * 50
    with code.code_time(10):
        lines = code_lines(text, "python")
    assert "span" in lines[0]
    assert "span" not in lines[-1]
    assert read("".join(lines)).text == text


@pytest.mark.parametrize(
    ("path", "language"),
    [
        ("/a/b.py", "python"),
        ("Makefile", "make"),
        ("/x/Dockerfile", "docker"),
        ("a.tar.gz", None),
        ("", None),
        ("/", None),
        ("a.PY<script>", None),
    ],
)
def test_the_name_of_a_file_tells_its_language(path, language):
    assert language_of_file(path) == language


def test_the_word_after_a_fence_is_no_file():
    assert (language_of("Python"), language_of(".py")) == ("python", None)


# ── Changes ─────────────────────────────────────────────────────────────────────────────────────


def rows(html, body):
    [inner] = re.findall(rf'<tbody class="{body}"[^>]*>(.*?)</tbody>', html, re.DOTALL)
    return re.findall(r"<tr(?: class=\"([^\"]*)\")?>(.*?)</tr>", inner)


def test_a_change_is_a_table_for_one_and_for_two_columns():
    html = diff_of_contents("", "a\nb\nc\nd\n", "a\nB\nC\nx\nd\n")
    read(html)
    assert [kind for kind, _ in rows(html, "unified")] == [
        *("hunk", "same", "del", "del", "add", "add", "add", "same")
    ]
    split = [re.findall(r'class="text (\w+)">([^<]*)', row) for _, row in rows(html, "split")[1:]]
    assert split == [
        [("same", "a"), ("same", "a")],
        [("del", "b"), ("add", "B")],
        [("del", "c"), ("add", "C")],
        [("none", ""), ("add", "x")],
        [("same", "d"), ("same", "d")],
    ]
    numbers = [re.findall(r'class="num">(\d*)<', row) for _, row in rows(html, "unified")[1:]]
    assert numbers == [
        ["1", "1"],
        ["2", ""],
        ["3", ""],
        ["", "2"],
        ["", "3"],
        ["", "4"],
        ["4", "5"],
    ]
    assert '<tbody class="split" hidden>' in html


def test_a_change_of_code_is_coloured_and_escaped():
    html = diff_of_contents("a.py", "x = '<b>'", "def x(): '<script>'")
    read(html)
    assert '<span class="hl-k">def</span>' in html
    assert "&lt;script&gt;" in html


def test_no_change_is_an_empty_table_and_garbage_is_ignored():
    assert rows(diff_of_contents("a", "x", "x"), "unified") == []
    assert rows(diff_table("garbage\n+x\n@@ -x +y @@\n"), "unified") == []
    read(diff_table("--- a/<b>\n+++ b/<script>\n@@ -1 +1 @@ <img>\n-<i>\n+<u>\n\\ No newline"))


def test_a_long_change_is_cut_and_a_huge_file_is_not_compared():
    html = diff_of_contents("", "", "a\n" * (LINES_MOST + 5))
    assert rows(html, "unified")[-1][0] == "hunk note"
    assert len(rows(html, "unified")) == LINES_MOST + 2
    assert "too long" in diff_of_contents("", "a" * 1_000_001, "")
    assert len(diff_of_contents("", "", "a" * 900_000)) < 50_000


# ── Messages ────────────────────────────────────────────────────────────────────────────────────


def result(content="", /, *, is_error=False, **metadata):
    return ToolResultPart(
        tool_call_id=ToolCallId("c"),
        name="t",
        content=content,
        metadata=json.dumps(metadata) if metadata else "",
        is_error=is_error,
    )


def message(*parts, at=1):
    return Message(
        parts=parts,
        id=MessageId("m"),
        role=Role.ASSISTANT,
        session_id=SessionId("s"),
        updated_at=at,
    )


def test_parts_are_rendered_and_found_by_their_place():
    made = render_message(
        message(
            ReasoningPart(thinking="*a*"),
            TextPart(text="  "),
            TextPart(text="**b**"),
            BinaryPart(path="p", mime_type="image/png", data=b""),
        )
    )
    assert [(part.index, part.html) for part in made.parts] == [
        (0, "<p><em>a</em></p>\n"),
        (2, "<p><strong>b</strong></p>\n"),
    ]


def test_a_message_that_takes_too_long_is_plain_from_there_on(monkeypatch):
    times = iter([0, 1, 2, 100, 100])
    monkeypatch.setattr(rendering, "monotonic", lambda: next(times))
    made = render_message(message(*[TextPart(text="x")] * 4))
    assert [part.index for part in made.parts] == [0, 1]


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        (result("Edited /w/a.py (+1).", old_content="a = 1\n", new_content="b = 1\n"), 'hl-n">b'),
        (result("Created /w/a.py (+1).", new_content="b = 1\n"), '<tr class="add">'),
        (result("Wrote x", diff="--- a/a.py\n+++ b/a.py\n@@ -0,0 +1 @@\n+def f\n"), "hl-k"),
        (result("<file>", file_path="/w/a.py", content="def f"), '<pre class="code"'),
        (result("x" * 10, file_path="/w/a.py", content="x" * 300_000), '<pre class="plain"'),
        (result("text", file_path="/w/a.unknown", content="def f"), None),
        (result("error", is_error=True, file_path="/w/a.py", content="def f"), None),
        (result("text"), None),
        (result("text", file_path=1, content=[], diff={}, new_content=None), None),
    ],
)
def test_the_result_of_a_tool_is_a_change_code_or_plain(part, wanted):
    html = render_part(part)
    if wanted is None:
        assert html is None
    else:
        read(html)
        assert wanted in html


@pytest.mark.parametrize("metadata", ["{", "[]", "1", "[" * 100_000, '{"diff": "\\ud800"}'])
def test_odd_metadata_is_no_reason_to_fail(metadata):
    part = attrs.evolve(result("text"), metadata=metadata)
    html = render_part(part)
    assert html is None or read(html)


# ── What is kept ────────────────────────────────────────────────────────────────────────────────

pytestmark = (
    pytest.mark.real_clock
)  # rendering is in a thread, for which a mock clock does not wait


async def test_pages_that_ask_at_the_same_time_share_one_rendering(monkeypatch):
    made = []
    real = rendering.render_message
    monkeypatch.setattr(rendering, "render_message", lambda each: made.append(1) or real(each))
    shared, answers = Rendering(), []

    async def ask():
        answers.append(await shared.message("w", message(TextPart(text="x"))))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)
    await ask()
    assert (len(made), len(answers), len(set(map(id, answers)))) == (1, 11, 1)
    await shared.message("w", message(TextPart(text="y"), at=2))
    assert len(made) == 2


async def test_what_was_used_longest_ago_is_dropped(monkeypatch):
    shared = Rendering(most=3000)
    ask = partial(shared.diff, "a.txt", "")
    first = await ask("x" * 200)
    await ask("y" * 200)
    assert await ask("x" * 200) is first
    for number in range(20):
        await ask(f"{number}" * 100)
        assert shared.size <= 3000
    assert await ask("x" * 200) is not first
    huge = await ask("z" * 10_000)
    assert shared.size <= 3000
    assert await ask("z" * 10_000) == huge


async def test_a_page_that_leaves_does_not_take_the_rendering_from_others():
    shared = Rendering()
    with trio.CancelScope() as left:
        left.cancel()
        await shared.diff("", "", "a")
    assert left.cancelled_caught
    assert b"add" in await shared.diff("", "", "a")


# ── Routes ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_finished_message_is_rendered_and_a_growing_one_is_not():
    gate = Gate("writing")
    turns = WrittenTurns({"go": [Say("**b** <script>"), Pause(gate)]})
    async with open_test_server(turns) as server:
        place = await server.create(client_id(1))
        session = await place.create_session()
        with await place.watch(client_id(1), "&form=native") as events:
            await place.submit(session, "go", run_id="r")
            await gate.reached()
            [_, answer] = await place.messages(session)
            target = f"/sessions/{session}/messages/{answer['id']}/rendered"
            growing = await place.request("GET", target)
            assert (growing.status, growing.json()["code"]) == (409, "message_growing")
            gate.open()
            await events.until(
                lambda event: event.get("payload", event).get("state") == "completed"
            )
        told = (await place.request("GET", target)).json()
        assert told["id"] == answer["id"]
        assert told["parts"] == [{"index": 0, "html": "<p><strong>b</strong> &lt;script&gt;</p>\n"}]
        other = await place.create_session()
        for wrong in (target.replace(session, other), target.replace(answer["id"], "none")):
            answered = await place.request("GET", wrong)
            assert (answered.status, answered.json()["code"]) == (404, "message_not_found")


async def test_a_change_is_rendered_on_request():
    async with open_test_server() as server:
        body = {"path": "a.py", "old": "a", "new": "b"}
        answer = await server.request("POST", "/v1/render/diff", body)
        assert answer.status == 200
        read(answer.json()["html"])


def test_a_server_imports_the_libraries_with_the_first_message_and_not_before():
    script = (
        "import sys, crush_trio.server.app, crush_trio.server.hosting.host\n"
        "print([name for name in ('markdown_it', 'pygments') if name in sys.modules])\n"
        "from crush_trio.server.page.markdown import markdown\n"
        "markdown('x')\n"
        "print([name for name in ('markdown_it', 'pygments') if name in sys.modules])\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stdout.splitlines() == ["[]", "['markdown_it']"]
