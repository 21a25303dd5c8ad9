"""`StoredTerms`: what is kept of the terms of a workspace, so that it can be opened again without its client."""

from attrs import frozen

from crush_trio.backend.settings import Terms
from crush_trio.wire.codec import decode, encode
from crush_trio.wire.ids import ClientId
from crush_trio.wire.requests import WorkspaceRequest


@frozen(kw_only=True)
class StoredTerms:
    """The terms of a workspace without the environment, which may hold secrets."""

    yolo: bool = False
    debug: bool = False
    data_dir: str = ""
    channels: tuple[str, ...] = ()
    with_env: bool = False
    """Whether its client sent an environment: then only a client can open it again as it was."""

    @classmethod
    def of(cls, terms: Terms) -> "StoredTerms":
        """Return what is stored of *terms*."""
        return cls(
            yolo=terms.yolo,
            debug=terms.debug,
            data_dir=terms.data_dir,
            channels=terms.channels,
            with_env=bool(terms.env),
        )

    @classmethod
    def read(cls, text: str) -> "StoredTerms":
        """Return the stored terms; the default ones if none are stored."""
        return decode(text.encode(), cls) if text else cls()

    def text(self) -> str:
        """Return them as they are stored."""
        return encode(self).decode()

    def request(self, path: str, client_id: ClientId) -> WorkspaceRequest:
        """Return a create with these terms."""
        return WorkspaceRequest(
            path=path,
            client_id=client_id,
            yolo=self.yolo,
            debug=self.debug,
            data_dir=self.data_dir,
            channels=self.channels,
        )
