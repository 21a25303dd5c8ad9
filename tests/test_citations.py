"""Every citation of the contract or of the wire page leads to an explanation.

An id such as A16, D14a, E.3 or T5, or `H edit` in an `item` marker, has an anchor in `docs/contract/`.
`wire.md §3.7` is a numbered heading of `docs/wire.md`.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRACT = ROOT / "docs" / "contract"

FOLDERS = ("crush_trio", "tests", "docs", "examples", "benchmarks", "newsfragments")
SOURCES = [
    ROOT / "README.md",
    *(
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md"} and path != Path(__file__)
    ),
]

# Not ids: a part of a longer word or number (UTF8, E501, 1.D3), of an escape (%F0) or of a colour.
CITED = re.compile(r"(?<![\w.%#$\\-])([A-LT]\.?\d{1,2}(?:[a-z]|\.\d)?)(?!\w)")
MARKED = re.compile(r"mark\.item\(([^()]*)\)")
LITERAL = re.compile(r'"([^"]+)"')
SECTION = re.compile(r"wire\.md ((?:(?:, )?§\d+(?:\.\d+)?)+)")
ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
LINKED = re.compile(r"\]\(([\w./-]*\.md)?#([^)]+)\)")


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def citations(text):
    """Yield the ids that *text* cites, and the line of each."""
    for match in CITED.finditer(text):
        yield match[1], line_of(text, match.start())
    for marker in MARKED.finditer(text):
        for literal in LITERAL.finditer(marker[1]):
            yield literal[1].replace(" ", "-"), line_of(text, marker.start())


def anchors():
    return [
        name for page in CONTRACT.glob("*.md") for name in ANCHOR.findall(page.read_text("utf-8"))
    ]


@pytest.fixture(scope="module")
def texts():
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in SOURCES}


@pytest.mark.heavy
def test_every_cited_id_is_explained(texts):
    known = set(anchors())
    found = [(name, cited) for name, text in texts.items() for cited in citations(text)]
    assert len(found) > 1000
    missing = {f"{name}:{line}: {item}" for name, (item, line) in found if item not in known}
    assert not missing, "no anchor in docs/contract/:\n" + "\n".join(sorted(missing))


def test_every_anchor_is_unique():
    assert [name for name, times in Counter(anchors()).items() if times > 1] == []


def test_every_explanation_says_something():
    for page in CONTRACT.glob("*.md"):
        for item in re.split(r"^(?=###? )", page.read_text("utf-8"), flags=re.MULTILINE)[1:]:
            heading, _, body = item.partition("\n")
            assert body.strip() or heading.startswith("## "), f"{page.name}: {heading}"


def places(text):
    """Return what a link may lead to in a page: its anchors and its headings."""
    headings = re.findall(r"^#+ (.*)$", ANCHOR.sub("", text), re.MULTILINE)
    slugs = {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }
    return slugs | set(ANCHOR.findall(text))


def test_every_link_of_and_to_these_pages_leads_somewhere(texts):
    ours = {page.resolve() for page in [*CONTRACT.glob("*.md"), ROOT / "docs" / "wire.md"]}
    wrong = []
    for name in [name for name in texts if name.endswith(".md")]:
        page = (ROOT / name).resolve()
        for target, place in LINKED.findall(texts[name]):
            there = (page.parent / target).resolve() if target else page
            if ours & {page, there} and place not in places(there.read_text("utf-8")):
                wrong.append(f"{name}: {target}#{place}")
    assert wrong == []


def test_every_cited_section_of_the_wire_page_exists(texts):
    page = texts["docs/wire.md"]
    known = set(re.findall(r"^##+ (\d+(?:\.\d+)?)\b", page, re.MULTILINE))
    missing = [
        f"{name}:{line_of(text, match.start())}: §{section}"
        for name, text in texts.items()
        for match in SECTION.finditer(text)
        for section in re.findall(r"[\d.]+", match[1])
        if section not in known
    ]
    assert not missing, "no such section in docs/wire.md:\n" + "\n".join(missing)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("ends once (B1, D14a), see E.3 and A9.1.", ["B1", "D14a", "E.3", "A9.1"]),
        ("D15 to D18", ["D15", "D18"]),
        ('@pytest.mark.item("A16", "H edit")', ["A16", "A16", "H-edit"]),
        ("# noqa: E501, UTF8, %F0%9F, id-A4, #A3, fe3fA1", []),
    ],
)
def test_ids_are_told_from_what_looks_like_one(text, ids):
    assert [item for item, _ in citations(text)] == ids
