"""`RuleBook`: lists, adds and removes the permission rules of a configuration, as clients see them."""

import trio
from attrs import frozen

from crush_trio.config.errors import ConfigInvalid
from crush_trio.config.live import Configuration
from crush_trio.config.rules.rules import RuleProblem, check_rule, rule_id
from crush_trio.errors import RuleElsewhere
from crush_trio.wire.asks import PermissionRule, RuleView


@frozen(eq=False)
class RuleBook:
    """The permission rules of one configuration. Changes go to the file that is written for the user."""

    _config: Configuration

    @property
    def rules(self) -> tuple[RuleView, ...]:
        """The rules of all of the user's files, lowest first."""
        current = self._config.current
        return tuple(each.view(current.places.data_file) for each in current.rules)

    async def add(self, rule: PermissionRule) -> RuleView:
        """Add a rule, unless it is there already; return it. Raises `ConfigInvalid`."""
        await trio.lowlevel.checkpoint()
        try:
            check_rule(rule)
        except RuleProblem as problem:
            raise ConfigInvalid.at("", problem.key, str(problem)) from None
        await self._config.add_rules((rule,))
        wanted = rule_id(rule)
        return next(each for each in self.rules if each.id == wanted)

    async def remove(self, wanted: str) -> bool:
        """Remove the rule with an id; False if there is none.

        Raises `RuleElsewhere` if it is in another file only.
        """
        await trio.lowlevel.checkpoint()
        found = [each for each in self.rules if each.id == wanted]
        if found and not any(each.removable for each in found):
            raise RuleElsewhere(found[0].file)
        return await self._config.remove_rule(wanted)
