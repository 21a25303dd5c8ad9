"""One tree of errors: every leaf can be told apart by programs and read by people."""

import copy
import importlib
import pickle
from collections import Counter
from pathlib import Path

import pytest

import crush_trio
from crush_trio import errors
from crush_trio.errors import CrushError


def load_every_errors_module():
    """Import each `errors.py` of the package, so that the tree below is complete."""
    [root] = crush_trio.__path__
    for path in sorted(Path(root).rglob("errors.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        importlib.import_module(f"crush_trio.{name}")


def tree(cls=CrushError):
    """Return *cls* and all errors below it that the package itself defines."""
    below = [sub for sub in cls.__subclasses__() if sub.__module__.startswith("crush_trio.")]
    return [cls, *(error for sub in below for error in tree(sub))]


def is_leaf(cls):
    return tree(cls) == [cls]


load_every_errors_module()
TREE = tree()
LEAVES = [cls for cls in TREE if is_leaf(cls)]
GROUPS = [cls for cls in TREE if not is_leaf(cls)]


def name_of(cls):
    return cls.__name__


@pytest.mark.parametrize("leaf", LEAVES, ids=name_of)
def test_a_leaf_has_a_code_a_message_and_a_docstring_of_its_own(leaf):
    own = vars(leaf)
    assert own.get("code"), "a program could not match on it"
    assert own.get("message"), "a person could not read it"
    assert own.get("__doc__")
    assert own["code"].isascii()
    assert own["code"].replace("_", "").isalnum()
    assert own["code"] == own["code"].lower()


def test_no_two_errors_share_a_code():
    codes = Counter(cls.code for cls in [*LEAVES, CrushError])
    assert [code for code, times in codes.items() if times > 1] == []


@pytest.mark.parametrize("group", GROUPS, ids=name_of)
def test_a_group_has_a_docstring_and_no_code_of_its_own(group):
    assert vars(group).get("__doc__")
    assert group.code == CrushError.code


def test_every_public_name_of_the_module_is_in_the_tree():
    defined = {value for value in vars(errors).values() if isinstance(value, type)}
    assert defined <= set(TREE)


# The exact texts of wire.md §1. Clients show them, and some compare them.
WIRE_MESSAGES = [
    "internal server error",
    "failed to decode request",
    "client_id is required",
    "client_id is not a valid UUID",
    "invalid client_id",
    "path is required",
    "unknown command",
    "invalid permission action",
    "name is required",
    "workspace not found",
    "LSP client not found",
    "client not attached",
    "workspace closing",
    "server is hosting live workspaces",
    "client has been retired",
    "server is shutting down",
    "prompt is empty",
    "session id is missing",
    "session is currently processing another request",
]


@pytest.mark.parametrize("text", WIRE_MESSAGES)
def test_a_message_of_the_wire_belongs_to_exactly_one_error(text):
    assert len([cls for cls in [CrushError, *LEAVES] if cls.message == text]) == 1


@pytest.mark.parametrize("leaf", LEAVES, ids=name_of)
def test_without_a_detail_the_text_is_the_message_alone(leaf):
    assert str(leaf()) == leaf.message
    assert leaf().detail == ""


def test_a_detail_follows_the_message():
    error = errors.ClientIdInvalid("too short")
    assert str(error) == "invalid client_id: too short"
    assert error.detail == "too short"


@pytest.mark.parametrize(
    ("leaf", "group"),
    [
        (errors.DecodeError, errors.BadRequest),
        (errors.RunNotFound, errors.NotFound),
        (errors.WorkspaceClosing, errors.Conflict),
        (errors.RunIdTaken, errors.Conflict),
        (errors.AcceptanceNotStored, errors.Unavailable),
    ],
)
def test_a_caller_can_catch_a_whole_group(leaf, group):
    with pytest.raises(group):
        raise leaf("detail")


def test_an_error_is_the_same_after_pickling_and_copying():
    error = errors.SessionNotFound("s1")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again), again.detail) == (type(error), str(error), "s1")
