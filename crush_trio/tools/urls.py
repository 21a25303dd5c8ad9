"""Addresses of the web, taken apart once and for all.

What a person was shown and what is requested must be the same thing, so a URL is read in one place. One
that different programs read differently (with a login in it, with blanks, with no host) is refused.
"""

import re
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

from attrs import frozen
from typing_extensions import override

from crush_trio.tools.base import ToolError

PORTS: Final = {"http": 80, "https": 443}

_BLANK: Final = re.compile(r"[\x00-\x20\x7f]")
_SAFE: Final = "/%:@!$&'()*+,;=~-._?[]|"
"""Characters of a path or a query that are sent as they are."""


@frozen(kw_only=True)
class Url:
    """A place on the web. `host` is what is looked up, `target` what the server is asked for."""

    scheme: str
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, text: str) -> "Url":
        """Read a URL; raise a `ToolError` if it is none, or not one of the web."""
        if not text:
            raise ToolError("url is required")
        if _BLANK.search(text):
            raise ToolError("not a usable URL: there is a blank in it")
        try:
            parts = urlsplit(text)
            port = parts.port
            host = _ascii(parts.hostname or "")
        except ValueError as exc:
            raise ToolError(f"not a usable URL: {exc}") from exc
        if parts.scheme not in PORTS or not host:
            raise ToolError("the URL must begin with http:// or https:// and name a host")
        if parts.username is not None:
            raise ToolError("the URL must not hold a login")
        query = f"?{quote(parts.query, safe=_SAFE)}" if parts.query else ""
        return cls(
            scheme=parts.scheme,
            host=host,
            port=PORTS[parts.scheme] if port is None else port,
            target=quote(parts.path or "/", safe=_SAFE) + query,
        )

    def join(self, reference: str) -> "Url":
        """Return where *reference* leads from here."""
        try:
            return Url.parse(urljoin(str(self), reference.strip()))
        except ValueError as exc:
            raise ToolError(f"not a usable URL: {exc}") from exc

    @property
    def authority(self) -> str:
        """The host, and the port if it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @override
    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def _ascii(host: str) -> str:
    """Return a host as the name servers know it; `UnicodeError` is a `ValueError`."""
    return host if host.isascii() else host.encode("idna").decode("ascii")
