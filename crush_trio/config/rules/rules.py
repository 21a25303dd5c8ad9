"""The permission rules of a configuration: checks, ids, and changes to them.

Rules are read from the user's own files only. Those of all these files count together: a list in one
file does not replace that of another, because a denial must not disappear when a file gets its first
rule. Changes are written to the file that this program writes for the user.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

import orjson
from attrs import frozen

from crush_trio.config.errors import ConfigInvalid
from crush_trio.config.rules.patterns import (
    ExactLine,
    Invocation,
    Output,
    Pattern,
    PatternInvalid,
    PatternKind,
    kind_of,
    parse_pattern,
    unallowable,
)
from crush_trio.wire.asks import PermissionRule, RuleDecision, RuleView

RULES_KEY: Final = ("permissions", "rules")

_NO_TOOL: Final = "expected the name of a tool, such as bash"
_NO_PATTERN: Final = (
    "expected a pattern to allow; to allow the whole tool, add it to permissions.allowed_tools"
)
_DIRECTORY: Final = "expected an absolute path"


@frozen(kw_only=True)
class LoadedRule:
    """A rule, parsed, and the file that it is written in."""

    rule: PermissionRule
    pattern: Pattern | None
    file: Path

    def view(self, data_file: Path) -> RuleView:
        """Return the rule for clients; *data_file* is the one that this program writes."""
        rule = self.rule
        return RuleView(
            id=rule_id(rule),
            decision=rule.decision,
            tool=rule.tool,
            pattern=rule.pattern,
            directory=rule.directory,
            file=str(self.file),
            removable=self.file == data_file,
        )


def rule_id(rule: PermissionRule) -> str:
    """Return the id of a rule: the same for the same rule, in any file and after any restart."""
    content = [rule.decision.value, rule.tool, rule.pattern, rule.directory]
    return sha256(orjson.dumps(content)).hexdigest()[:12]


def load_rules(rules: Iterable[PermissionRule], file: Path) -> tuple[LoadedRule, ...]:
    """Check the rules of one of the user's files. Raises `ConfigInvalid` for the first wrong one."""
    loaded = []
    for index, rule in enumerate(rules):
        try:
            pattern = check_rule(rule)
        except RuleProblem as problem:
            key = f"permissions.rules[{index}].{problem.key}"
            raise ConfigInvalid.at(file, key, str(problem)) from None
        loaded.append(LoadedRule(rule=rule, pattern=pattern, file=file))
    return tuple(loaded)


class RuleProblem(ValueError):
    """What is wrong with a rule, and at which of its keys."""

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        super().__init__(text)


def check_rule(rule: PermissionRule) -> Pattern | None:
    """Return the parsed pattern of a rule. Raises `RuleProblem`."""
    if not rule.tool.strip() or rule.tool != rule.tool.strip():
        raise RuleProblem("tool", _NO_TOOL)
    if rule.directory and not Path(rule.directory).is_absolute():
        raise RuleProblem("directory", _DIRECTORY)
    try:
        pattern = parse_pattern(rule.tool, rule.pattern)
    except PatternInvalid as problem:
        raise RuleProblem("pattern", str(problem)) from None
    if rule.decision is RuleDecision.ALLOW:
        if pattern is None and kind_of(rule.tool) is not PatternKind.NONE:
            raise RuleProblem("pattern", _NO_PATTERN)
        if isinstance(pattern, Invocation | Output | ExactLine) and (why := unallowable(pattern)):
            raise RuleProblem("pattern", why)
    return pattern
