"""Origins and URLs: parsed strictly, in one way only."""

import pytest

from crush_trio.net.address import Origin, Url, origin_of
from crush_trio.net.errors import BadUrl


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
    with pytest.raises(BadUrl):
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
    with pytest.raises(BadUrl):
        Url.parse("http://h/").join(reference)


@pytest.mark.parametrize(
    ("url", "origin", "name"),
    [
        ("https://a.test/v1", Origin("a.test", 443, secure=True), "a.test"),
        ("http://a.test/v1", Origin("a.test", 80, secure=False), "a.test"),
        ("http://a.test:8080", Origin("a.test", 8080, secure=False), "a.test:8080"),
        ("http://[::1]:8080", Origin("::1", 8080, secure=False), "[::1]:8080"),
        ("https://[::1]", Origin("::1", 443, secure=True), "[::1]"),
        (
            "https://bücher.test",
            Origin("xn--bcher-kva.test", 443, secure=True),
            "xn--bcher-kva.test",
        ),
        ("http://a.test:443", Origin("a.test", 443, secure=False), "a.test:443"),
    ],
)
def test_a_url_names_a_server(url, origin, name):
    assert origin_of(url) == origin
    assert origin.name == name


@pytest.mark.parametrize(
    "url",
    ["", "a.test", "ftp://a.test", "https://", "http://a:99999", "http://[", "http://" + "a" * 99],
)
def test_a_url_that_names_none_is_refused(url):
    with pytest.raises(BadUrl):
        origin_of(url)
