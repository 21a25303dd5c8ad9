"""A PostgreSQL server for tests: one for each process of pytest, a database for each test that wants one.

`CRUSH_TRIO_TEST_POSTGRES` names a server instead: a URL of a user who may create databases. Else the
server is the packaged one (`benchmarks.driver.postgres`).
"""

import os
import sys
from functools import cache
from itertools import count

import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks.driver.postgres import NOBODY, PostgresServer, programs
from benchmarks.driver.process import free_port

__all__ = [
    "NOBODY",
    "VARIABLE",
    "PostgresServer",
    "connect",
    "free_port",
    "new_database",
    "of_user",
    "programs",
    "server_url",
    "shared_database_url",
    "user_of",
    "with_database",
]

VARIABLE = "CRUSH_TRIO_TEST_POSTGRES"

_numbers = count(1)


@cache
def server_url():
    """Return the URL of the server of this process of pytest, which is started if need be."""
    if url := os.environ.get(VARIABLE):
        return url
    return _server().url


@cache
def _server():
    return PostgresServer()


def with_database(url, name):
    """Return *url* with another database."""
    base, _, query = url.partition("?")
    return f"{base.rpartition('/')[0]}/{name}" + (f"?{query}" if query else "")


def new_database(url=None, *, encoding="UTF8"):
    """Make an empty database and return its URL."""
    url = url or server_url()
    name = f"crush_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
        )
    return with_database(url, name)


@cache
def shared_database_url():
    """Return the URL of one database for all tests that need no other than a workspace of their own."""
    return new_database()


def connect(url):
    """Connect as a person would, to look at rows."""
    return psycopg.connect(url, autocommit=True)


def of_user(url, name):
    """Return *url* with another user."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{name}@{rest.rpartition('@')[2]}"


def user_of(url):
    return conninfo_to_dict(url).get("user", "")


if __name__ == "__main__":  # a server for a program that is no test, until its input ends
    sys.stdout.write(f"{new_database()}\n")
    sys.stdout.flush()
    sys.stdin.read()
