"""HTML as a stream of tokens, in one pass.

A page is untrusted, so the time is proportional to its length, whatever is in it. That holds because
nothing is searched for twice: what is not closed (a comment, a quote, a tag, a script) extends to the end of
the page, as in browsers. There is no tree, hence no depth.
"""

import html
import re
from collections.abc import Iterator
from typing import Final, TypeAlias

from attrs import frozen

SKIPPED: Final = frozenset(
    ("script", "style", "template", "noscript", "svg", "iframe", "noembed", "noframes", "textarea")
)
"""Elements whose content is not text to read."""

_NAME: Final = re.compile(r"[A-Za-z][^\s/>]*+")
_STOP: Final = re.compile(r"=\s*+([\"'])|>")
_ATTRIBUTE: Final = re.compile(
    r"([^\s=/\"'>]++)(?:\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s\"'>]++)))?+"
)


@frozen
class Text:
    """Characters to read, with their references resolved."""

    text: str


@frozen
class Start:
    """The beginning of an element, or all of an empty one."""

    name: str
    source: str

    def attribute(self, name: str) -> str:
        """Return the value of an attribute; empty if it has none."""
        for found in _ATTRIBUTE.finditer(self.source):
            if found[1].lower() == name:
                return unescape(next(filter(None, found.groups()[1:]), ""))
        return ""


@frozen
class End:
    """The end of an element."""

    name: str


Token: TypeAlias = Text | Start | End


def tokens(page: str) -> Iterator[Token]:
    """Yield the tokens of a page, without comments and content that is not text."""
    place = 0
    while place < len(page):
        tag = page.find("<", place)
        if tag < 0:
            tag = len(page)
        if tag > place:
            yield Text(unescape(page[place:tag]))
        token, place = _markup(page, tag)
        if token is not None:
            yield token


def _markup(page: str, place: int) -> tuple[Token | None, int]:
    """Parse the markup that begins with the `<` at *place*; return its token and the place after it."""
    if page.startswith("<!--", place):
        return None, _after(page, "-->", place + 4)
    if page.startswith(("<!", "<?"), place):
        return None, _after(page, ">", place + 2)
    closing = page.startswith("</", place)
    name = _NAME.match(page, place + 1 + closing)
    if name is None:
        return (Text(page[place]), place + 1) if place < len(page) else (None, place)
    if closing:
        return End(name[0].lower()), _after(page, ">", name.end())
    end = _tag_end(page, name.end())
    if end is None:
        return None, len(page)
    start = Start(name[0].lower(), page[name.end() : end])
    if start.name in SKIPPED and not start.source.endswith("/"):
        return None, _after_element(page, start.name, end + 1)
    return start, end + 1


def _after(page: str, mark: str, place: int) -> int:
    found = page.find(mark, place)
    return len(page) if found < 0 else found + len(mark)


def _tag_end(page: str, place: int) -> int | None:
    """Return where the `>` of a tag is; one inside a quoted value does not end it."""
    while (stop := _STOP.search(page, place)) is not None:
        if stop[1] is None:
            return stop.start()
        place = page.find(stop[1], stop.end()) + 1
        if not place:
            return None
    return None


def _after_element(page: str, name: str, place: int) -> int:
    end = re.compile(rf"</{name}(?=[\s/>])[^>]*+>", re.IGNORECASE).search(page, place)
    return len(page) if end is None else end.end()


def unescape(text: str) -> str:
    """Resolve character references. A number too long to be one is left as it stands."""
    if "&" not in text:
        return text
    try:
        return html.unescape(text)
    except ValueError:
        return text
