"""The rules of the routes: they are matched, and nothing is compiled to write addresses from them."""

import pytest
from werkzeug.routing import Rule

from crush_trio.server.app import routed
from crush_trio.server.rules import MatchedRule


def test_every_route_is_matched_by_a_rule_of_ours():
    rules = list(routed().url_map.iter_rules())
    assert rules
    assert {type(rule) for rule in rules} == {MatchedRule}


def test_the_framework_still_asks_for_its_builders_where_they_are_refused():
    """If it no longer does, the refusal is dead code, and the routes cost again what they did."""
    assert "_compile_builder" in vars(Rule)
    with pytest.raises(TypeError, match="/v1/health is matched only"):
        routed().url_map.bind("test").build("system.health")
