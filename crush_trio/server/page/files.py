"""The files of the page: which names are served, from where, and with which headers.

The files are in the package (`crush_trio/web`), so they hold no secret and need no token. A file is read
when it is first asked for, and again when it has changed; until a page is opened, nothing is read.
"""

import os
import re
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

WEB: Final = Path(__file__).parents[2] / "web"
"""The folder in the package with the JavaScript module and, in `page`, the page."""

INDEX: Final = "page/index.html"
"""The document of the page, which every deep link shows."""

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; manifest-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
"""What the page may load and do: its own files, and requests to its own server."""

MEDIA: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
"""The media type of each kind of file; others are not served."""

SAFE_HEADERS: Final = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SIZE_LIMIT: Final = 4 * 1024 * 1024


@frozen
class PageFile:
    """A file as it is sent."""

    content: bytes = field(repr=False)
    headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    etag: str

    def matches(self, wanted: str | None) -> bool:
        """Whether an `If-None-Match` header says that the client has this content."""
        if wanted is None:
            return False
        given = {each.strip().removeprefix("W/") for each in wanted.split(",")}
        return self.etag in given or "*" in given


@define(eq=False)
class PageFiles:
    """The files below *root* that have a name and a kind that the page may use."""

    root: Path = WEB
    _kept: dict[str, tuple[tuple[int, int], PageFile]] = field(factory=dict, init=False, repr=False)
    """Files that were read, with what identifies their content on the disk."""

    def find(self, name: str) -> PageFile | None:
        """Return the file called *name*, relative to the root; None if there is none. Blocks for a moment."""
        media = MEDIA.get(Path(name).suffix)
        if media is None or not all(map(_SEGMENT.fullmatch, name.split("/"))):
            return None
        try:
            about = os.stat(self.root / name, follow_symlinks=False)  # noqa: PTH116 - one call
        except OSError:
            return None
        if not stat.S_ISREG(about.st_mode) or about.st_size > _SIZE_LIMIT:
            return None
        state = about.st_mtime_ns, about.st_size
        kept = self._kept.get(name)
        if kept is None or kept[0] != state:
            kept = self._kept[name] = state, self._read(name, media)
        return kept[1]

    def _read(self, name: str, media: str) -> PageFile:
        content = (self.root / name).read_bytes()
        etag = f'"{sha256(content).hexdigest()[:32]}"'
        headers = (
            (b"content-type", media.encode()),
            (b"cache-control", b"no-cache"),
            (b"etag", etag.encode()),
            *SAFE_HEADERS,
        )
        return PageFile(content, headers, etag)
