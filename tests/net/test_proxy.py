"""Which proxy an environment names."""

import pytest

from crush_trio.net.address import Origin, origin_of
from crush_trio.net.dial import Proxy, proxy_for
from crush_trio.net.errors import ConnectFailed

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("url", "environment", "proxied"),
    [
        ("https://model.test/", {}, False),
        ("https://model.test/", {"https_proxy": PROXY}, True),
        ("https://model.test/", {"HTTPS_PROXY": "proxy:3128"}, True),
        ("https://model.test/", {"http_proxy": PROXY}, False),
        ("http://model.test/", {"http_proxy": PROXY}, True),
        ("http://model.test/", {"HTTP_PROXY": PROXY}, True),
        ("https://model.test/", {"all_proxy": PROXY}, True),
        ("https://model.test/", {"ALL_PROXY": PROXY}, True),
        ("https://model.test/", {"https_proxy": "", "HTTPS_PROXY": PROXY}, False),
        ("http://localhost:11434/", {"http_proxy": PROXY}, False),
        ("http://a.localhost:11434/", {"http_proxy": PROXY}, False),
        ("http://127.0.0.1:11434/", {"http_proxy": PROXY}, False),
        ("http://[::1]:11434/", {"http_proxy": PROXY}, False),
    ],
)
def test_the_environment_names_the_proxy(url, environment, proxied):
    proxy = proxy_for(origin_of(url), environment)
    assert proxy == (Proxy(Origin("proxy", 3128, secure=False)) if proxied else None)


@pytest.mark.parametrize(
    ("url", "no_proxy", "proxied"),
    [
        ("https://model.test/", "*", False),
        ("https://model.test/", "test", False),
        ("https://model.test/", ".test", False),
        ("https://model.test/", "*.test", False),
        ("https://model.test/", "MODEL.test", False),
        ("https://model.test/", "other, model.test", False),
        ("https://model.test/", "model.test:443", False),
        ("https://model.test:8443/", "model.test:443", True),
        ("https://model.test/", "del.test", True),
        ("https://model.test/", "model.test.example", True),
        ("https://model.test/", " , ", True),
        ("https://model.test/", "other model.test", False),
        ("https://model.test/", "other\tmodel.test,third", False),
        ("https://model.test/", "other, *", False),
        ("https://model.test./", "model.test", False),
        ("https://model.test./", "test", False),
        ("https://model.test./", "model.test:443", False),
        ("https://model.test/", "model.test.", False),
        ("https://model.test./", "other.test", True),
        ("https://10.1.2.3/", "10.0.0.0/8", False),
        ("https://10.1.2.3/", "10.1.2.3", False),
        ("https://11.1.2.3/", "10.0.0.0/8", True),
        ("https://[fd00::1]/", "fd00::/8", False),
        ("https://[fd00::1]/", "[fd00::1]", False),
    ],
)
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_hosts_can_be_excepted(url, no_proxy, proxied, name):
    environment = {"https_proxy": PROXY, name: no_proxy}
    assert (proxy_for(origin_of(url), environment) is not None) == proxied


def test_a_login_is_unquoted_and_not_shown():
    proxy = proxy_for(origin_of("https://a.test"), {"all_proxy": "http://me:p%40ss@proxy"})
    assert proxy == Proxy(Origin("proxy", 80, secure=False), "me:p@ss")
    assert "p@ss" not in repr(proxy)


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://me:secret@[::1",
        "http://127.0.0.1:99999",
        "http://me:secret@proxy:port",
        "http://me:secret",
        "me:secret@a..b",
        "http://me:secret@\u2100",
        "http://",
    ],
)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_malformed_proxy_is_named_by_its_variable_and_without_its_login(url, name):
    with pytest.raises(ConnectFailed, match=f"{name} is not a usable URL") as failed:
        proxy_for(origin_of("http://a.test"), {name: url})
    assert "secret" not in str(failed.value) + failed.value.reason
    assert failed.value.__suppress_context__


def test_a_proxy_that_speaks_something_else_is_an_error():
    with pytest.raises(ConnectFailed, match=r"socks5 proxy in all_proxy.*NO_PROXY"):
        proxy_for(origin_of("https://a.test"), {"all_proxy": "socks5://proxy:1080"})
