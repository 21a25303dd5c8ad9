"""Numbered migrations of a database, `schema/NNNN_name.sql`; a released file is never edited.

Each database notes the number of the last file that was applied, in the same transaction as the step, so it
is always exactly at one version. How a step is applied is the database's own matter.
"""

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from attrs import frozen

from crush_trio.store.errors import StoreTooNew

_NAME: Final = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


@frozen(kw_only=True)
class Migration:
    """One step of the schema, from version `number - 1` to `number`."""

    number: int
    name: str
    sql: str


def migrations_of(package: str) -> tuple[Migration, ...]:
    """Return the migrations in the folder `schema` of *package*, oldest first."""
    found = []
    for file in files(package).joinpath("schema").iterdir():
        if match := _NAME.fullmatch(file.name):
            number = int(match[1])
            found.append(Migration(number=number, name=file.name, sql=file.read_text("utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.number))


def missing(migrations: Sequence[Migration], version: int, label: object) -> Sequence[Migration]:
    """Return those of *migrations* that the database *label* at *version* lacks.

    Raises `StoreTooNew` for a database of a newer program.
    """
    newest = migrations[-1].number if migrations else 0
    if version > newest:
        raise StoreTooNew(f"{label} has schema {version}, this program knows up to {newest}")
    return [migration for migration in migrations if migration.number > version]
