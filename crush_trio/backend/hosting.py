"""What a hosted workspace is: the terms it was created on, the thing that was opened, its claims.

The thing itself is whatever the program's `OpenWorkspace` opens. The backend does not look into it.
"""

from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeVar

from attrs import define, field, fields_dict, frozen

from crush_trio.backend.claims import Claims
from crush_trio.backend.keys import WorkspaceKey
from crush_trio.wire.ids import ClientId, SessionId, WorkspaceId
from crush_trio.wire.requests import WorkspaceRequest

W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)


@frozen(kw_only=True)
class Terms:
    """What a client asks of the workspace it creates. The environment stays out of `repr`."""

    yolo: bool = False
    debug: bool = False
    data_dir: str = ""
    env: tuple[str, ...] = field(default=(), repr=False)
    channels: tuple[str, ...] = ()
    create: bool = False
    """Whether the directory is made if it does not exist."""

    @classmethod
    def of(cls, request: WorkspaceRequest) -> "Terms":
        """Return the terms of a create, as they were sent."""
        return cls(**{name: getattr(request, name) for name in fields_dict(cls)})

    def differences(self, other: "Terms") -> tuple[str, ...]:
        """Name what differs. No values: an environment has secrets in it."""
        return tuple(
            name for name in fields_dict(Terms) if getattr(self, name) != getattr(other, name)
        )


@frozen(kw_only=True)
class WorkspacePlan:
    """All that is known of a workspace before it is opened, and that stays so."""

    id: WorkspaceId
    key: WorkspaceKey
    path: str
    """The directory as its first client spelt it."""
    terms: Terms
    created_by: ClientId


class OpenWorkspace(Protocol[W_co]):
    """Opens the actual thing. Leaving the block closes it, in bounded time."""

    def __call__(self, plan: WorkspacePlan, /) -> AbstractAsyncContextManager[W_co]:
        """Return the block in which the workspace of *plan* is open."""
        ...


@define(eq=False)
class Hosted(Generic[W]):
    """A workspace that clients can use: what was opened, on which terms, and who holds it."""

    plan: WorkspacePlan
    opened: W
    claims: Claims = field(repr=False)

    @property
    def id(self) -> WorkspaceId:
        """The id under which clients reach it."""
        return self.plan.id

    @property
    def terms(self) -> Terms:
        """The terms of the first client, which hold for everyone (E3)."""
        return self.plan.terms

    def attached_clients(self, session_id: SessionId) -> int:
        """How many clients look at the session (E16)."""
        return self.claims.attached(session_id)
