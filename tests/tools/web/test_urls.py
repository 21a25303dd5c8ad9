"""URLs: read once, and only one way."""

import pytest

from crush_trio.tools.base import ToolError
from crush_trio.tools.web.http import Url


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://Host.example", "http://host.example/"),
        ("HTTPS://h:443/a?b=c#d", "https://h/a?b=c"),
        ("http://h:8080/a/../b", "http://h:8080/a/../b"),
        ("http://[::1]:81/x", "http://[::1]:81/x"),
        ("http://bücher.example/ü?ö=ä", "http://xn--bcher-kva.example/%C3%BC?%C3%B6=%C3%A4"),
        ("http://h/a%20b?c=%2F|d", "http://h/a%20b?c=%2F|d"),
        ("http://h?q", "http://h/?q"),
    ],
)
def test_url_is_read(text, shown):
    assert str(Url.parse(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        *("", "h", "//h/x", "ftp://h", "http:///x", "http://", "http://h:99999", "http://h:x"),
        *("http://u@h", "http://u:p@h", "http://h/\nx", "http://h /", " http://h", "http://[::1"),
        "http://" + "ü" * 70 + "/",
    ],
)
def test_what_is_no_url_of_the_web_is_refused(text):
    with pytest.raises(ToolError):
        Url.parse(text)


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        ("/x", "http://h/x"),
        ("x", "http://h/a/x"),
        ("?q", "http://h/a/b?q"),
        ("//other/y", "http://other/y"),
        ("https://other", "https://other/"),
        (" /x ", "http://h/x"),
    ],
)
def test_redirect_is_relative_to_where_it_came_from(reference, shown):
    assert str(Url.parse("http://h/a/b").join(reference)) == shown


@pytest.mark.parametrize("reference", ["file:///etc/passwd", "javascript:x", "http://[", "//u:p@h"])
def test_redirect_elsewhere_than_the_web_is_refused(reference):
    with pytest.raises(ToolError):
        Url.parse("http://h/").join(reference)
