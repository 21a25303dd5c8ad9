"""Which addresses a model's requests may reach.

A person sees the whole URL before anything is requested, and may well mean a server on this machine.
What a person cannot see is where a name or a redirect leads. So addresses are judged when a connection
is there, before anything is sent over it; a name that means one thing now and another a moment later
gains nothing by that. Two things are refused:

* addresses at which clouds hand out credentials to whoever asks, and all link-local ones, always;
* addresses that are not public, once a redirect comes from a public one.
"""

from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, TypeAlias

from attrs import define, field

from crush_trio.tools.base import ToolError

Address: TypeAlias = IPv4Address | IPv6Address

FORBIDDEN: Final = tuple(
    ip_network(text)
    for text in (
        *("169.254.0.0/16", "fe80::/10"),  # link-local, with the metadata services of most clouds
        *("fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
    )
)
_FORBIDDEN_NAMES: Final = frozenset(("metadata.google.internal", "metadata.goog"))
_NAT64: Final = ip_network("64:ff9b::/96")


@define(eq=False)
class Reach:
    """Judges one request: the address it begins at, and those its redirects lead to."""

    forbidden: tuple[IPv4Network | IPv6Network, ...] = FORBIDDEN
    _public: bool = field(default=False, init=False)
    """Whether it has been at a public address."""

    def judge_name(self, host: str) -> None:
        """Raise a `ToolError` if *host* needs no look-up to be refused."""
        name = host.rstrip(".").lower()
        if name in _FORBIDDEN_NAMES:
            raise _refused(host)
        try:
            address = ip_address(name.strip("[]"))
        except ValueError:
            return
        self._judge(_plain(address), host)

    def admit(self, text: str) -> None:
        """Raise a `ToolError` unless a request may be sent to this address, the next of its way."""
        address = _plain(ip_address(text))
        self._judge(address, text)
        self._public = self._public or address.is_global

    def _judge(self, address: Address, shown: str) -> None:
        if any(address in network for network in self.forbidden):
            raise _refused(shown)
        if self._public and not address.is_global:
            raise ToolError(f"refused: a public site redirects to the private address {shown}")


def _refused(shown: str) -> ToolError:
    return ToolError(f"refused: {shown} is a link-local or metadata address")


def _plain(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, if it stands for one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
