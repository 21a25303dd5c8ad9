"""Who clients are: the syntax of their ids, and which of them said goodbye.

A client names itself with a UUID. However it is spelt, one UUID is one client, so everything behind
`client_id_of` sees the canonical form only.
"""

import re
from typing import Final

from attrs import define, field

from crush_trio.errors import ClientIdInvalid
from crush_trio.wire.ids import ClientId

_CANONICAL: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UUID: Final = re.compile(
    rf"(?:urn:uuid:)?({_CANONICAL})|\{{({_CANONICAL})\}}|([0-9a-f]{{32}})",
    re.IGNORECASE | re.ASCII,
)


def client_id_of(text: str) -> ClientId:
    """Return the client that *text* names, or raise `ClientIdInvalid`.

    Accepts what the wire accepts: the canonical form, 32 hexadecimal digits, braces around the
    canonical form, and `urn:uuid:` before it.
    """
    match = _UUID.fullmatch(text)
    if match is None:
        raise ClientIdInvalid
    digits = next(group for group in match.groups() if group).replace("-", "").lower()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return ClientId("-".join(parts))


def version_notice(client: str, server: str) -> str:
    """Say that the two programs are of different versions; empty if not, or if one is unknown.

    For the answer to a create: as an event it would come before its reader has a stream (L41).
    """
    if not client or not server or client == server:
        return ""
    return f"the client is version {client}, the server is version {server}"


@define(eq=False)
class RetiredClients:
    """Clients whose creates are refused, because they have already left.

    An id is remembered for as long as a create that was sent before the goodbye may still be on its
    way, and then forgotten, so that the memory this takes does not grow for ever (L23).
    """

    remembered_for: float
    _until: dict[ClientId, float] = field(factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self._until)

    def add(self, client_id: ClientId, now: float) -> None:
        """Remember the client from now on; doing it again starts the time anew."""
        self._forget_before(now)
        self._until.pop(client_id, None)  # to the end of the line: it stays sorted by time
        self._until[client_id] = now + self.remembered_for

    def has(self, client_id: ClientId, now: float) -> bool:
        """Whether the client said goodbye not too long ago."""
        self._forget_before(now)
        return client_id in self._until

    def _forget_before(self, now: float) -> None:
        while self._until:
            oldest = next(iter(self._until))
            if self._until[oldest] > now:
                return
            del self._until[oldest]
