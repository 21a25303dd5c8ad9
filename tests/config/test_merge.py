"""Layers of JSON put over each other, and the question of who said what."""

from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.config.sources import Layer, Layers, merge

CHECKS = settings(derandomize=True, deadline=None, database=None)
KEYS = st.sampled_from("abc")
VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
TREES = st.dictionaries(KEYS, VALUES, max_size=3)


def layers(*trees):
    return Layers(tuple(Layer(source=number, tree=tree) for number, tree in enumerate(trees)))


def leaves(tree, way=()):
    """Return the way to everything that is no object, and to empty objects."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*way, key))
        else:
            yield (*way, key), value


def at(tree, way):
    for key in way:
        tree = tree[key]
    return tree


@pytest.mark.parametrize(
    ("below", "above", "merged"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": {"x": 1, "y": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"x": 1}}, {"a": None}, {"a": None}),
        ({"a": None}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({"a": {"x": 1}}, {"a": 5}, {"a": 5}),
    ],
)
def test_objects_merge_and_everything_else_replaces(below, above, merged):
    assert merge(below, above) == merged


@CHECKS
@given(TREES)
def test_an_empty_layer_and_a_repeated_one_change_nothing(tree):
    assert merge(tree, {}) == merge({}, tree) == merge(tree, tree) == tree


@CHECKS
@given(TREES, TREES)
def test_every_leaf_of_the_upper_layer_is_in_the_result(below, above):
    merged = merge(below, above)
    for way, value in leaves(above):
        if value != {}:
            assert at(merged, way) == value


@CHECKS
@given(TREES, TREES)
def test_merging_changes_neither_layer(below, above):
    before = deepcopy((below, above))
    merge(below, above)
    assert (below, above) == before


@CHECKS
@given(st.lists(TREES, max_size=4))
def test_a_leaf_stands_in_the_layer_that_is_named_as_its_origin(trees):
    stack = layers(*trees)
    for way, value in leaves(stack.tree()):
        origin = stack.origin(*way)
        assert origin is not None
        if value != {}:
            assert at(trees[origin], way) == value


def test_a_value_that_nobody_set_has_no_origin():
    assert layers({"a": {"b": 1}}).origin("a", "c") is None
    assert layers().origin("a") is None


def test_the_origin_of_something_in_a_list_is_that_of_the_list():
    stack = layers({"a": ["x", "y"]}, {"b": 1})
    assert stack.origin("a", 1) == 0


def test_all_who_have_a_say_in_an_object_are_named_last_first():
    stack = layers({"s": {"x": {"p": 1}}}, {"other": 1}, {"s": {"x": {"q": 2}}})
    assert stack.contributors("s", "x") == (2, 0)


def test_whoever_is_replaced_altogether_has_no_say():
    stack = layers({"s": {"x": {"p": 1}}}, {"s": {"x": None}}, {"s": {"x": {"q": 2}}})
    assert stack.contributors("s", "x") == (2, 1)
    assert stack.origin("s", "x", "p") == 1
