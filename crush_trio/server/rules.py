"""The addresses of routes: recognised, and never written.

The framework makes of every rule two functions that write an address from it, by composing and compiling
their source. With ours that is most of what setting up the routes takes, and it is for nothing: no
answer names an address that a rule would have to write.
"""

from collections.abc import Callable
from typing import NoReturn

from quart.routing import QuartRule
from typing_extensions import override


class MatchedRule(QuartRule):
    """A rule that finds its route, and refuses to write its address."""

    @override
    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        """Return what stands in the place of a function that writes addresses."""
        return _refuse


def _refuse(rule: QuartRule, **_values: object) -> NoReturn:
    raise TypeError(f"{rule.rule} is matched only; no address is made from it")
