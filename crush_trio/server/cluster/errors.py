"""Errors of requests that concern another node."""

from crush_trio.errors import CrushError, Unavailable
from crush_trio.net.errors import NetworkError


class NotOwner(CrushError):
    """A request was passed on to this node, which does not run the workspace."""

    code = "not_owner"
    message = "this server does not run the workspace any more; ask again"


class OwnerUnreachable(Unavailable):
    """The node that runs the workspace does not answer, and its lease still holds."""

    code = "owner_unreachable"
    message = (
        "the server that runs this workspace cannot be reached from here, but it is alive; check the address"
        " that it advertises, its token and the network between the servers"
    )


class AnotherAnswered(NetworkError):
    """At the address of a node something else answers: a program, a later start, or a node with another token.

    As good as no connection: nothing of the workspace is there. What it said is not passed back.
    """

    code = "another_answered"
    message = "what answers at the address of the server is not that server, or has another token"


class ForwardLost(CrushError):
    """The connection to another node broke after the request was sent."""

    code = "forward_lost"
    message = (
        "the connection to the server that runs this workspace broke; the request may have been carried"
        " out: look before you send it again"
    )


class WorkspaceElsewhere(Unavailable):
    """The directory is on machines of another site, and none of their servers can be reached."""

    code = "workspace_elsewhere"
    message = "no server of the site that has this directory can be reached; start one there"


class ClusterTokenMissing(CrushError):
    """A server would advertise an address to other nodes, and has no token that they could show."""

    code = "cluster_token_missing"
    message = (
        "a server with --advertise needs a token, the same on all nodes: set CRUSH_TRIO_TOKEN or"
        " CRUSH_TRIO_TOKEN_FILE"
    )
