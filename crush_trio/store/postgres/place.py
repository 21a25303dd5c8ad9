"""Where a PostgreSQL database is: the URL of the store settings, and what may be shown of it.

This module needs no driver. psycopg is imported by the others, once `need_driver` has found it.
"""

import importlib.util
import socket
from typing import Final, Self
from urllib.parse import parse_qsl, unquote

from attrs import field, frozen

from crush_trio.store.errors import StoreUnsuitable

INSTALL: Final = (
    "the store on PostgreSQL needs the package psycopg, which is not installed: pip install"
    " 'crush-trio[postgres]'"
)

MALFORMED: Final = (
    "its URL is malformed; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, and special characters of"
    " the password as %2F and the like"
)

HIDDEN: Final = "[redacted]"

_SECRETS: Final = frozenset({"password", "sslpassword", "oauth_client_secret"})
"""Parameters of a URL that are secret."""


def need_driver() -> None:
    """Raise `StoreUnsuitable`, with the command that installs it, if there is no psycopg."""
    if importlib.util.find_spec("psycopg") is None:
        raise StoreUnsuitable(INSTALL)


@frozen
class Place:
    """A database, by its URL. Neither the `repr` nor the label has anything secret."""

    url: str = field(repr=False)
    label: str
    """What errors and logs call it: hosts and the name of the database."""
    secrets: tuple[str, ...] = field(repr=False)
    """The passwords of the URL, as they are and as the URL writes them."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Read *url*, as far as it is shown; the driver reads all of it.

        Raises `StoreUnsuitable` if a character of the password seems to end the part before it: then
        the driver would take pieces of the password for other things, and show them in its errors.
        """
        before, _, parameters = url.partition("://")[2].partition("?")
        authority, _, path = before.partition("/")
        credentials, _, hosts = authority.rpartition("@")
        query = dict(parse_qsl(parameters, keep_blank_values=True))
        if "@" in path or any("@" in key for key in query):
            raise StoreUnsuitable(MALFORMED)
        name = query.get("dbname") or unquote(path)
        secrets = [unquote(credentials.partition(":")[2]), credentials.partition(":")[2]]
        secrets += [value for key, value in query.items() if key in _SECRETS]
        where = unquote(hosts) or query.get("host", "") or "the local server"
        label = f"PostgreSQL at {where}" + (f", database {name}" if name else "")
        return cls(url, label, tuple({secret for secret in secrets if secret}))

    def without_password(self, text: str) -> str:
        """Return *text* with the secrets of the URL replaced."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return text


def this_site() -> str:
    """Return the name of the site of this machine: its host name."""
    return socket.gethostname()
