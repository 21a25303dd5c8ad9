"""Several files as one: a deep merge in which the later file wins.

Objects are merged key by key. Everything else replaces what was there: text, numbers, null, and lists
too. A list that grew with every file could never be made shorter again, and where one file ends and
the next begins would be anybody's guess; so whoever writes a list writes all of it. A null puts the
default back.

The layers stay at hand after merging, because where a value comes from decides what it may do: a
command in a file of the user's is run, the same command in somebody else's project is not.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypeAlias, TypeVar

from attrs import field, frozen

from crush_trio.wire.fields import Json

S = TypeVar("S")

Tree: TypeAlias = Mapping[str, Json]
"""A parsed JSON object. Nobody changes one; a changed copy shares what did not change."""

_ABSENT: Final = object()


def merge(below: Tree, above: Tree) -> dict[str, Json]:
    """Return *below* with everything that *above* says put over it. Neither is changed."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


@frozen(kw_only=True)
class Layer(Generic[S]):
    """What one source says."""

    source: S
    tree: Tree = field(repr=False)


@frozen
class Layers(Generic[S]):
    """All that is said, lowest layer first."""

    layers: tuple[Layer[S], ...]

    def tree(self) -> dict[str, Json]:
        """Return everything merged."""
        merged: dict[str, Json] = {}
        for layer in self.layers:
            merged = merge(merged, layer.tree)
        return merged

    def origin(self, *keys: str | int) -> S | None:
        """Return the source of the value at *keys*: for an object the last one that has a say.

        None if no layer says anything about it.
        """
        return next(iter(self.contributors(*keys)), None)

    def contributors(self, *keys: str | int) -> tuple[S, ...]:
        """Return every source that has a say in the value at *keys*, the last one first."""
        return tuple(self._from_above(keys))

    def _from_above(self, keys: tuple[str | int, ...]) -> Iterator[S]:
        for layer in reversed(self.layers):
            found, whole = _look(layer.tree, keys)
            if found is not _ABSENT:
                yield layer.source
            if whole:
                return


def _look(tree: Json, keys: tuple[str | int, ...]) -> tuple[Json, bool]:
    """Return what is at *keys*, and whether nothing below this layer can be seen through it.

    A way that ends early, in a list or in plain text, leads to whatever it ends in.
    """
    value = tree
    for key in keys:
        if not isinstance(value, Mapping):
            break
        value = value.get(key, _ABSENT)
        if value is _ABSENT:
            return _ABSENT, False
    return value, not isinstance(value, Mapping)
