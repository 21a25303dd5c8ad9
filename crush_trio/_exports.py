"""Lazy exports: the front of a package imports a name's module when the name is first used.

`import crush_trio` then costs a few milliseconds, and a program that uses the run core alone never
loads the server, the database or the command line. A front states its names once, in a table from
module to names; the stub `__init__.pyi` beside it has the same imports for type checkers and editors,
and a test compares the two.

Not even `typing` is imported: Ctrl-C during these imports is a traceback, because `crush_trio.__main__` comes
after them.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Homes = Mapping[str, Sequence[str]]
"""Names by the module that defines them."""


def lazy(
    package: str, homes: Homes, doors: Sequence[str] = ()
) -> "tuple[Callable[[str], Any], Callable[[], list[str]]]":
    """Return `__getattr__` and `__dir__` for the front of *package*.

    *doors* are sub-packages that can be used as attributes after importing *package* alone.
    """
    home = {name: module for module, names in homes.items() for name in names}
    front = import_module(package)

    def get(name: str) -> "Any":  # noqa: ANN401  # it is of the type that the stub says
        if name in doors:
            return import_module(f"{package}.{name}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(front, name, value)  # the next use does not come here
        return value

    def names() -> list[str]:
        return sorted({*vars(front), *home, *doors})

    return get, names


def names_of(homes: Homes) -> list[str]:
    """Return all names, in the order of `__all__`: constants, classes, functions."""
    names = [name for names in homes.values() for name in names]
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
