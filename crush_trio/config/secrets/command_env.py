"""`CommandEnv`: which variables of the environment the agent's commands get.

Variables that have a secret's name, or contain a known secret or a URL with a password, are left out,
unless the user passes them on. So is what connects to a database with a password in another form, if its
name says so. Variables that a shell cannot do without are kept whatever they contain.
"""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Final

from attrs import frozen

from crush_trio.config.redaction import is_secret_name
from crush_trio.config.secrets.known import KnownSecrets, SecretMatcher, url_passwords
from crush_trio.wire.fields import Key, Marker

_SECRET_VARIABLE: Final = re.compile(
    r"(?:.*_)?(?:API_?KEY|KEY|TOKEN|SECRET|CREDENTIALS?)|.*(?:PASSWORD|PASSWD|PASSPHRASE).*"
)
_HARMLESS: Final = re.compile(
    r"GIT_CONFIG_KEY_[0-9]+|.*_PUBLIC_KEY|.*_TOKENS|SSH_AUTH_SOCK|XAUTHORITY"
)
_CONNECTION: Final = re.compile(
    r".*(?:DSN|URL|URI|CONNECTION|CONN(?:ECTION)?_?STR(?:ING)?)|.*CONNECTION_?STRINGS?_.*"
)
_PASSWORD: Final = re.compile(
    r"^[^\s:@/]++:(?!//)[^\s@]++@|(?:^|[\s;?&])(?:password|passwd|pwd|accountkey|sharedaccesskey)\s*=\s*[^\s;&]",
    re.IGNORECASE,
)
"""A password in a connection string that is no URL: `user:password@tcp(host)`, `host=h password=p`."""
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY")
_NEEDED: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "PWD"}
)
"""Variables that are kept even if a known secret occurs in their value."""


@lru_cache(maxsize=1024)  # asked for the whole environment before every step of a run
def is_secret_variable(name: str) -> bool:
    """Whether a variable of this name is kept from commands."""
    upper = name.upper()
    if _HARMLESS.fullmatch(upper):
        return False
    return _SECRET_VARIABLE.fullmatch(upper) is not None or is_secret_name(name)


@lru_cache(maxsize=1024)
def has_password(name: str, value: str) -> bool:
    """Whether the value of a variable contains a private key, or a password in a URL or connection string."""
    if url_passwords(value) or _PRIVATE_KEY.search(value):
        return True
    return _CONNECTION.fullmatch(name.upper()) is not None and _PASSWORD.search(value) is not None


@frozen(kw_only=True)
class CommandEnv:
    """Which variables the agent's commands get, besides the harmless ones; the user's files set it.

    Both lists have names, in which `*` stands for any characters; case does not matter. What is in
    both is dropped.
    """

    passed: Annotated[tuple[str, ...], Key("pass"), Marker.OMIT_EMPTY] = ()
    dropped: Annotated[tuple[str, ...], Key("drop"), Marker.OMIT_EMPTY] = ()

    def apply(self, environment: Mapping[str, str], secrets: KnownSecrets) -> dict[str, str]:
        """Return the variables of *environment* that commands get."""
        return {
            name: value
            for name, value in environment.items()
            if self._keeps(name, value, secrets.matcher)
        }

    def _keeps(self, name: str, value: str, secrets: SecretMatcher) -> bool:
        if _listed(name, self.dropped):
            return False
        if name in _NEEDED or _listed(name, self.passed):
            return True
        secret = is_secret_variable(name) or has_password(name, value)
        return not secret and secrets.redact(value) == value

    def added(self, other: "CommandEnv") -> "CommandEnv":
        """Return both together."""
        return CommandEnv(
            passed=(*self.passed, *other.passed), dropped=(*self.dropped, *other.dropped)
        )

    def invalid_name(self) -> tuple[str, str] | None:
        """Return the key and the text of the first entry that cannot be a name."""
        for key, names in (("pass", self.passed), ("drop", self.dropped)):
            for name in names:
                if not _NAME.fullmatch(name):
                    return key, name
        return None


_NAME: Final = re.compile(r"[A-Za-z_*][A-Za-z0-9_*]*")


def _listed(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name.upper(), pattern.upper()) for pattern in patterns)
