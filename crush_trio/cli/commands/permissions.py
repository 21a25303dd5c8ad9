"""`crush-trio permissions`: list, add or remove the permission rules of the user's configuration."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import click
import trio
from attrs import define
from rich.table import Table
from rich.text import Text

from crush_trio.audit.record import Action
from crush_trio.cli.audited import record_change
from crush_trio.cli.configuration import places_of
from crush_trio.cli.exits import RuleUnknown
from crush_trio.cli.names import match_id
from crush_trio.cli.options import (
    Invocation,
    OneOf,
    Target,
    cwd_option,
    debug_option,
    directory_of,
    host_option,
    json_option,
    json_text,
    print_report,
    write,
)
from crush_trio.cli.server_link import finds_server, open_directory, open_link
from crush_trio.cli.terminal.text import one_line
from crush_trio.client.session_routes import PermissionRoutes
from crush_trio.config.live import open_live_config
from crush_trio.config.rules.book import RuleBook
from crush_trio.config.rules.rules import RuleProblem, check_rule
from crush_trio.wire.asks import PermissionRule, RuleDecision, RuleView
from crush_trio.wire.codec import unstructure

_STYLES = {RuleDecision.ALLOW: "green", RuleDecision.ASK: "yellow", RuleDecision.DENY: "red"}


@click.group(invoke_without_command=True)
@host_option
@cwd_option
@json_option
@debug_option
@click.pass_context
def permissions(context: click.Context, host: str | None, cwd: str, as_json: bool) -> int:
    """List your permission rules; add or remove one.

    Of the rules that match a request, one that denies wins over one that asks, and that over one that
    allows. docs/permissions.md describes the patterns.
    """
    context.meta["target"] = host, directory_of(cwd, host)
    if context.invoked_subcommand is not None:
        return 0
    invocation = context.ensure_object(Invocation)
    return invocation.run(list_rules, invocation.environ, context.meta["target"], as_json)


@permissions.command("list")
@json_option
@click.pass_context
def list_command(context: click.Context, as_json: bool) -> int:
    """List the rules, and the files that they are in."""
    invocation = context.ensure_object(Invocation)
    return invocation.run(list_rules, invocation.environ, context.meta["target"], as_json)


@permissions.command()
@click.argument("decision", type=OneOf([each.value for each in RuleDecision]))
@click.argument("tool")
@click.argument("pattern", required=False, default="")
@click.option("--here", is_flag=True, help="Only in this directory, and below it.")
@click.pass_context
def add(context: click.Context, decision: str, tool: str, pattern: str, here: bool) -> int:
    """Add a rule: allow, ask or deny what TOOL does, or only what matches PATTERN.

    Quote the pattern: crush-trio permissions add allow bash 'git commit *'
    """
    invocation = context.ensure_object(Invocation)
    target = context.meta["target"]
    rule = PermissionRule(
        decision=RuleDecision(decision),
        tool=tool,
        pattern=pattern,
        directory=str(Path(target[1]).resolve()) if here else "",
    )
    try:
        check_rule(rule)
    except RuleProblem as problem:
        raise click.BadParameter(str(problem), param_hint=problem.key.upper()) from None
    return invocation.run(add_rule, invocation.environ, target, rule)


@permissions.command()
@click.argument("rule", metavar="ID")
@click.pass_context
def remove(context: click.Context, rule: str) -> int:
    """Remove the rule with this ID, which may be shortened."""
    invocation = context.ensure_object(Invocation)
    return invocation.run(remove_rule, invocation.environ, context.meta["target"], rule)


@define(eq=False)
class LocalRules:
    """The rules of the files on this machine, for when no server is running."""

    _book: RuleBook
    _environ: Mapping[str, str]

    async def rules(self) -> tuple[RuleView, ...]:
        """Return the rules."""
        await trio.lowlevel.checkpoint()
        return self._book.rules

    async def add_rule(self, rule: PermissionRule) -> RuleView:
        """Add a rule."""
        added = await self._book.add(rule)
        await record_change(
            self._environ, Action.CONFIG_CHANGED, f"added a rule: {rule.decision} {rule.tool}"
        )
        return added

    async def remove_rule(self, rule: str) -> bool:
        """Remove a rule."""
        removed = await self._book.remove(rule)
        if removed:
            await record_change(self._environ, Action.CONFIG_CHANGED, f"removed the rule {rule}")
        return removed


@asynccontextmanager
async def _open(
    environ: Mapping[str, str], target: Target
) -> AsyncIterator[LocalRules | PermissionRoutes]:
    """Open the rules: of a running server, which applies changes at once, or else of the files."""
    host, directory = target
    if host is None and not await finds_server(environ):
        async with open_live_config(places_of(Path(directory), environ)) as live:
            yield LocalRules(RuleBook(live), environ)
        return
    async with (
        open_link(host, environ, start=False) as link,
        open_directory(link, directory, environ, init=False) as workspace,
    ):
        yield workspace.permissions


async def list_rules(environ: Mapping[str, str], target: Target, as_json: bool) -> int:
    """Print the rules."""
    async with _open(environ, target) as book:
        found = await book.rules()
    if as_json:
        write(json_text([unstructure(each) for each in found], indent=True))
    elif found:
        print_report(rules_table(found))
    else:
        write(
            "There are no rules. Add one with: crush-trio permissions add DECISION TOOL PATTERN\n"
        )
    return 0


async def add_rule(environ: Mapping[str, str], target: Target, rule: PermissionRule) -> int:
    """Add a rule, and print it."""
    async with _open(environ, target) as book:
        added = await book.add_rule(rule)
    print_report(rules_table([added]))
    return 0


async def remove_rule(environ: Mapping[str, str], target: Target, wanted: str) -> int:
    """Remove a rule."""
    async with _open(environ, target) as book:
        found = await book.rules()
        rule_id = match_id(wanted, (each.id for each in found))
        if rule_id is None or not await book.remove_rule(rule_id):
            raise RuleUnknown(wanted)
    removed = next(each for each in found if each.id == rule_id)
    write(f"Removed: {removed.decision} {removed.tool} {one_line(removed.pattern)}".rstrip() + "\n")
    return 0


def rules_table(rules: Sequence[RuleView]) -> Table:
    """Return rules as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("Id", "Decision", "Tool"):
        table.add_column(heading, no_wrap=True)
    table.add_column("Pattern", ratio=1)
    table.add_column("Where")
    table.add_column("File")
    for rule in rules:
        table.add_row(
            rule.id,
            Text(rule.decision.value, _STYLES[rule.decision]),
            one_line(rule.tool),
            Text(one_line(rule.pattern or "(all of it)")),
            Text(one_line(rule.directory or "everywhere")),
            Text(one_line(rule.file), "dim"),
        )
    return table
