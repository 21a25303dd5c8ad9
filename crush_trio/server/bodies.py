"""Request bodies in, JSON arrays out.

`decode_body` turns the bytes of a request into a wire value that the rest of the program can trust.
Everything that a client can overdo has a limit in `BodyLimits`: bytes, nesting, number of values,
length of ids, size of attachments. What could make parsing itself expensive is measured before
anything is parsed, in time linear in the size. Every route goes through this one call.

`JsonPages` is an answer that is a JSON array of any length. It is made page by page, with a checkpoint
after each, and a page is made only when the client has taken the one before: no list that a client
asks for can hold up other requests. An array of one page is an ordinary answer.
"""

import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import cache
from types import NoneType
from typing import Any, Final, TypeVar, get_args

import attrs
import trio
from attrs import define, field, frozen

from crush_trio.errors import (
    BadRequest,
    ClientIdInvalid,
    ClientIdMalformed,
    ClientIdMissing,
    DecodeError,
)
from crush_trio.limits import DEFAULTS, MIB, SizeLimits, shown_bytes
from crush_trio.store.pages import Hole, PagePiece, Pages, fill_holes
from crush_trio.wire.codec import decode, encode
from crush_trio.wire.fields import Json, wire_fields
from crush_trio.wire.ids import (
    AskId,
    ClientId,
    MessageId,
    QuestionId,
    RunId,
    SessionId,
    WorkspaceId,
)
from crush_trio.wire.requests import AgentMessage, Attachment, SessionUpdate

T = TypeVar("T")


class BodyTooLarge(BadRequest):
    """A body of more bytes, or of more values, than the limits allow."""

    code = "body_too_large"
    message = "request body is too large"


class AttachmentTooLarge(BadRequest):
    """An attachment, or all attachments of a prompt together, are larger than the limits allow."""

    code = "attachment_too_large"
    message = "attachment is too large"


class IdInvalid(BadRequest):
    """An id that is too long, or has characters that no id has."""

    code = "id_invalid"
    message = "invalid id"


@frozen(kw_only=True)
class BodyLimits:
    """Limits on the body of a request."""

    size: int = 32 * MIB
    """Bytes of a body: all attachments in base64, which is a third longer, and a prompt."""
    depth: int = 128
    """Levels of nesting: 100 for an open value, and some for what is around it."""
    marks: int = 200_000
    """Strings, brackets and commas, hence values. Parsed, three bytes of `[],` take up sixty."""
    id_length: int = 256
    """Characters of an id. Ours have 36; a sub-agent's session is made of two."""
    sizes: SizeLimits = DEFAULTS
    """The server's limits, which include those of attachments."""

    @classmethod
    def of(cls, sizes: SizeLimits) -> "BodyLimits":
        """Return limits in which a body has room for the largest prompt that *sizes* allow."""
        needed = sizes.attachments * 4 // 3 + sizes.prompt + MIB
        return cls(sizes=sizes, size=max(LIMITS.size, needed))


LIMITS: Final = BodyLimits()
"""The default limits."""


def decode_body(
    data: bytes, cls: type[T], *, limits: BodyLimits = LIMITS, absent: T | None = None
) -> T:
    """Read a *cls* from the body of a request, or raise one `BadRequest` that says what is wrong.

    An empty body means *absent*, for routes that have such a default (`agent/init`, G13); elsewhere it
    is an error. Client ids are checked by `parse_client_id` and `query_client_id`, because the error
    depends on where they are missing.
    """
    check_size(len(data), limits)
    if not data:
        if absent is None:
            raise DecodeError("the body is empty")
        return absent
    _check_structure(data, limits)
    value = decode(data, cls)
    _check_ids(value, limits)
    if isinstance(value, AgentMessage):
        check_attachments(value.attachments, limits.sizes)
    return value


def check_size(size: int, limits: BodyLimits = LIMITS) -> None:
    """Refuse a body of *size* bytes if that is over the limit."""
    if size > limits.size:
        raise BodyTooLarge(f"it has {size} bytes, the limit is {limits.size}")


def check_attachments(attachments: Iterable[Attachment], sizes: SizeLimits = DEFAULTS) -> None:
    """Refuse attachments if one of them, or their sum, is too large."""
    total = 0
    for place, attachment in enumerate(attachments, 1):
        size = len(attachment.content)
        if size > sizes.attachment:
            limit = shown_bytes(sizes.attachment)
            raise AttachmentTooLarge(f"number {place} has {size:,} bytes, the limit is {limit}")
        total += size
    if total > sizes.attachments:
        limit = shown_bytes(sizes.attachments)
        raise AttachmentTooLarge(f"together they have {total:,} bytes, the limit is {limit}")


def check_amounts(session: SessionUpdate) -> None:
    """Refuse a session with a number below 0: its numbers are counts and costs."""
    for each in wire_fields(SessionUpdate):
        value = getattr(session, each.name)
        if isinstance(value, int | float) and value < 0:
            raise DecodeError(f"{each.key}: must not be negative, got {value}")


# ── Structure, before it is parsed ──────────────────────────────────────────────────────────────

_OPENING: Final = frozenset(b"[{")
_CLOSING: Final = frozenset(b"]}")
_UNMARKED: Final = bytes(byte for byte in range(256) if byte not in b'"[]{},')


def _check_structure(data: bytes, limits: BodyLimits) -> None:
    """Refuse JSON that is nested too deep or has too many values, whether or not it is valid.

    A loop over every byte would take seconds. Instead escapes are removed first, in pairs, so that
    every remaining quote begins or ends a string; then every byte that marks no structure. Splitting
    the rest at its quotes, every other part is outside of a string.
    """
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = plain.translate(None, delete=_UNMARKED)
    strings = marks.count(b'"') // 2
    if strings > limits.marks:
        raise _too_many(limits)
    outside = b"".join(marks.split(b'"')[::2])
    if strings + len(outside) > limits.marks:
        raise _too_many(limits)
    depth = 0
    for byte in outside:
        depth += (byte in _OPENING) - (byte in _CLOSING)
        if depth > limits.depth:
            raise DecodeError(f"nested more than {limits.depth} levels deep")


def _too_many(limits: BodyLimits) -> BodyTooLarge:
    return BodyTooLarge(f"it has more than {limits.marks} strings, brackets and commas")


# ── Ids ─────────────────────────────────────────────────────────────────────────────────────────

_CHECKED: Final[tuple[object, ...]] = (
    WorkspaceId,
    SessionId,
    RunId,
    MessageId,
    AskId,
    QuestionId,
)  # not the ids of tool calls: the model chooses them, and clients only repeat them

_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def check_id(text: str, what: str, limits: BodyLimits = LIMITS) -> None:
    """Refuse an id that is too long, or that would break a line of a log or a stream.

    Also one that is not valid Unicode, as an escaped path can be: it could not be stored. An empty id
    has errors of its own, elsewhere. *what* is the name of its field.
    """
    if len(text) > limits.id_length:
        raise IdInvalid(f"{what} has {len(text)} characters, the limit is {limits.id_length}")
    if _UNFIT.search(text):
        raise IdInvalid(f"{what} holds a control character")


_IDLESS: Final = frozenset({NoneType, bool, bytes, float, int, str})
"""Types of members that have no members of their own."""


def _check_ids(value: Json, limits: BodyLimits) -> None:
    """Check the ids of a wire value and of the values in it."""
    cls: type = type(value)
    if cls is tuple:
        for item in value:
            _check_ids(item, limits)
    elif attrs.has(cls):
        for name, key, is_id in _members(cls):
            member = getattr(value, name)
            if is_id and member:
                check_id(member, key, limits)
            elif not is_id and type(member) not in _IDLESS:  # as nearly every member is
                _check_ids(member, limits)


@cache
def _members(cls: type[Any]) -> tuple[tuple[str, str, bool], ...]:
    """Return name, key and whether it is an id, for each field of a wire class."""
    return tuple(
        (each.name, each.key, any(kind in _CHECKED for kind in (each.type, *get_args(each.type))))
        for each in wire_fields(cls)
    )


_UUID: Final = re.compile(
    r"(?:urn:uuid:)?H{8}-H{4}-H{4}-H{4}-H{12}|\{H{8}-H{4}-H{4}-H{4}-H{12}\}|H{32}".replace(
        "H", "[0-9a-f]"
    )
)
_GROUPS: Final = re.compile("(.{8})(.{4})(.{4})(.{4})(.{12})")


def parse_client_id(text: str) -> ClientId:
    """Read the client id of a body or a path; raise `ClientIdInvalid` if it is not a UUID.

    Clients may write it in four ways; all of them give the same canonical id.
    """
    client = _canonical(text)
    if client is None:
        raise ClientIdInvalid("it is missing" if not text else "it is not a UUID")
    return client


def query_client_id(text: str | None) -> ClientId:
    """Read the client id of a query; raise `ClientIdMissing` or `ClientIdMalformed`."""
    if not text:
        raise ClientIdMissing
    client = _canonical(text)
    if client is None:
        raise ClientIdMalformed
    return client


def _canonical(text: str) -> ClientId | None:
    """Return the UUID in lower case with four dashes; None if *text* is not one of its forms.

    Not `uuid.UUID`, which also accepts dashes anywhere and digits of any script.
    """
    lower = text.lower()
    if len(text) > len("urn:uuid:") + 36 or not _UUID.fullmatch(lower):
        return None
    digits = lower.removeprefix("urn:uuid:").strip("{}").replace("-", "")
    return ClientId(_GROUPS.sub(r"\1-\2-\3-\4-\5", digits))


# ── Answers that are arrays ─────────────────────────────────────────────────────────────────────

_VALUES_AT_ONCE: Final = 200
"""Values that are encoded in one step: a few milliseconds if they are large."""


def _as_stored(hole: Hole) -> bytes:
    return hole.default


@define(eq=False)
class JsonPages:
    """A JSON array that is sent page by page. *fill* gives what belongs into the holes of its pages."""

    _pages: Pages
    _fill: Callable[[Hole], bytes] = _as_stored
    _joint: bytes = field(default=b"[", init=False)
    """What comes before the next item."""

    @property
    def more(self) -> bool:
        """Whether there is another piece of it."""
        return self._pages.more

    async def read(self) -> bytes:
        """Return the next piece of the array; the last one closes it."""
        items = fill_holes(await self._pages.read(), self._fill)
        end = b"" if self._pages.more else b"]"
        if not items and end:
            return b"[]" if self._joint == b"[" else end
        piece = self._joint + items + end
        self._joint = b","
        return piece

    # ASYNC900: Quart sends nothing but an async generator piece by piece, and this one holds no scope.
    # ASYNC911: after the last piece there is nothing left to wait for.
    async def following(  # noqa: ASYNC900, ASYNC911
        self, first: bytes
    ) -> AsyncGenerator[bytes, None]:
        """Yield *first*, which has been read, and then the rest."""
        await trio.lowlevel.checkpoint()
        yield first
        while self.more:
            yield await self.read()


@define(eq=False)
class ValuePages:
    """The pages of values that are all in memory. Satisfies `Pages`."""

    _values: Sequence[object]
    _at: int = field(default=0, init=False)

    @property
    def more(self) -> bool:
        """Whether there is another page; an empty list has one, too."""
        return self._at < max(len(self._values), 1)

    async def read(self) -> Sequence[PagePiece]:
        """Return the next page."""
        await trio.lowlevel.checkpoint()
        values = self._values[self._at : self._at + _VALUES_AT_ONCE]
        self._at += _VALUES_AT_ONCE
        return (encode(values)[1:-1],)
