"""What one node tells another about the sender of a request that it passes on.

Such a request carries the token of the cluster, the id of the node that it came through, and what that node
has found out about the caller. It is accepted with that token only, and is never passed on again. This
module imports nothing of a cluster: every server looks for the header.
"""

from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

from crush_trio.errors import DecodeError
from crush_trio.server.guard import FORWARDED, Caller, Forbidden
from crush_trio.server.tokens import ENVIRONMENT_TOKEN, Right
from crush_trio.wire.codec import decode, encode

CALLER: Final = b"x-crush-trio-caller"
"""The header with what that node knows about the caller."""

NODE: Final = b"x-crush-trio-node"
"""The header with the start of the node that such a request is meant for, and of the one that answers it."""


class ForwardForbidden(Forbidden):
    """A request claims to come through another node and does not carry the token of the cluster."""

    code = "forward_forbidden"
    message = (
        "only a node of the same cluster may pass requests on; it has the same CRUSH_TRIO_TOKEN"
    )


@frozen(kw_only=True)
class _Conveyed:
    """A caller, as the header has it."""

    right: str
    token: str
    address: str
    own_process: bool


def headers_of(node_id: str, caller: Caller, boot: str) -> dict[str, str]:
    """Return the headers of a request that a node passes on for *caller*, to the start *boot* of another one."""
    told = _Conveyed(
        right=caller.right,
        token=caller.token,
        address=caller.address,
        own_process=caller.own_process,
    )
    return {
        FORWARDED.decode(): node_id,
        CALLER.decode(): encode(told).decode(),
        NODE.decode(): boot,
    }


def conveyed_caller(sender: Caller, scope: Mapping[str, Any]) -> Caller:
    """Return the caller on whose behalf another node asks; raises `ForwardForbidden` for other senders."""
    if sender.token != ENVIRONMENT_TOKEN or sender.cookie:
        raise ForwardForbidden
    given = [bytes(value) for name, value in scope["headers"] if bytes(name).lower() == CALLER]
    try:
        told = decode(given[0] if len(given) == 1 else b"", _Conveyed)
        right = Right(told.right)
    except (DecodeError, ValueError) as error:
        raise ForwardForbidden("it does not say who asks") from error
    return Caller(
        right=right,
        token=told.token,
        forwarded=True,
        address=told.address,
        own_process=told.own_process,
    )
