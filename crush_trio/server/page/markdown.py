"""Untrusted Markdown as HTML that is safe to show.

Raw HTML stays text. Links lead to http, https and mail addresses and nowhere else; other links stay as they
were written. A picture is a link to it: loading it would tell its server that the message is read. No element
has an id or a style, so text cannot take the place of something else in the page.
markdown-it-py is imported with the first text.
"""

from functools import cache
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from crush_trio.server.page.code import code_block, language_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token
    from markdown_it.utils import OptionsDict

TEXT_MOST: Final = 200_000
"""The most bytes of a text that is read as Markdown."""

HTML_MOST: Final = 4_000_000
"""The most characters of HTML that a text may become."""

NESTING: Final = 20
"""How deep quotes, lists and emphasis are read."""

_SCHEMES: Final = ("http://", "https://", "mailto:")
_ALIGNMENTS: Final = {f"text-align:{side}": f"align-{side}" for side in ("left", "center", "right")}


def markdown(text: str) -> str:
    """Return *text* as HTML; as plain text if it is too long. Takes time: call it in a thread."""
    if len(text.encode(errors="surrogatepass")) > TEXT_MOST:
        return plain(text)
    html = str(_parser().render(text))
    return html if len(html) <= HTML_MOST else plain(text)


def plain(text: str) -> str:
    """Return *text* as it is, for HTML."""
    return f'<pre class="plain">{escape(text)}</pre>\n'


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    parser = MarkdownIt("js-default", {"html": False, "linkify": False, "maxNesting": NESTING})
    parser.validateLink = _is_allowed  # type: ignore[method-assign]
    parser.core.ruler.push("tidy", lambda state: _tidy(state.tokens))
    for name, rule in (("fence", _fence), ("code_block", _fence), ("image", _image)):
        parser.add_render_rule(name, rule)
    return parser


def _is_allowed(url: str) -> bool:
    return url.strip().lower().startswith(_SCHEMES)


def _tidy(tokens: "Sequence[Token]") -> None:
    """Give links and table cells the attributes that they may have, and no others."""
    for token in tokens:
        if token.type == "link_open":
            token.attrs = _link_attributes(str(token.attrs.get("href", "")))
        elif "style" in token.attrs:
            style = str(token.attrs.pop("style"))
            if style in _ALIGNMENTS:
                token.attrs["class"] = _ALIGNMENTS[style]
        if token.children:
            if _depth(token.children) > NESTING:
                token.children = [_as_text(token)]
            _tidy(token.children)


def _depth(tokens: "Sequence[Token]") -> int:
    """Return how deep the deepest of *tokens* is; emphasis can be as deep as a text is long."""
    return max(accumulate(token.nesting for token in tokens), default=0)


def _as_text(token: "Token") -> "Token":
    from markdown_it.token import Token

    return Token("text", "", 0, content=token.content)


def _link_attributes(href: str) -> dict[str, str | int | float]:
    return {"href": href, "rel": "noopener noreferrer nofollow", "target": "_blank"}


def _fence(
    _self: "RendererHTML", tokens: "Sequence[Token]", at: int, _options: "OptionsDict", _env: object
) -> str:
    words = tokens[at].info.split()
    return code_block(tokens[at].content, language_of(words[0]) if words else None)


def _image(
    self: "RendererHTML",
    tokens: "Sequence[Token]",
    at: int,
    options: "OptionsDict",
    env: dict[str, Any],
) -> str:
    """Return a link to a picture, with its description."""
    token = tokens[at]
    href = str(token.attrs.get("src", ""))
    told = self.renderInlineAsText(token.children, options, env) if token.children else ""
    given = "".join(f' {k}="{escape(str(v))}"' for k, v in _link_attributes(href).items())
    return f'<a class="picture"{given}>{escape(told or href)}</a>'
