"""What the tools of this package have in common: how a model is told of them.

A tool names the class of its arguments, and its description stands in `<name>.md` beside its module.
Both are the same for every run, and a model is told of every tool in every step, so what is made of
them is made once.
"""

from functools import cache
from importlib.resources import files
from typing import Any, ClassVar

from crush_trio.tools.arguments import schema_of
from crush_trio.wire.fields import JsonObject


class BuiltIn:
    """A tool of ours, less what it does: `run` is all that it lacks to be a `Tool`."""

    __slots__ = ()

    name: ClassVar[str]
    parallel: ClassVar[bool] = False
    arguments: ClassVar[type[Any]]

    @property
    def description(self) -> str:
        """What the model is told."""
        return _described(type(self).__module__.rpartition(".")[0], self.name)

    @property
    def parameters(self) -> JsonObject:
        """The schema of the arguments."""
        return _schema(self.arguments)  # type: ignore[arg-type]  # mypy: a class is not Hashable


@cache
def _described(package: str, name: str) -> str:
    return files(package).joinpath(f"{name}.md").read_text(encoding="utf-8").strip()


@cache
def _schema(arguments: type[Any]) -> JsonObject:
    return schema_of(arguments)
