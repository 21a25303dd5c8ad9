"""`crush-trio config`: what is configured, and whether it makes sense.

What `crush-trio config check` says.
"""

from collections.abc import Mapping
from pathlib import Path

import click
import trio
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from crush_trio.cli.exits import ExitCode
from crush_trio.cli.options import (
    Invocation,
    debug_option,
    directory_of,
    pass_invocation,
    print_report,
)
from crush_trio.cli.server_link import configuration_of, places_of
from crush_trio.cli.terminal.text import one_line
from crush_trio.config.errors import ConfigInvalid, ConfigWarning
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import Source


async def check_config(environ: Mapping[str, str], directory: str) -> int:
    """Print what the configuration of a directory is, or what is wrong with it."""
    await trio.lowlevel.checkpoint()
    try:
        config = await configuration_of(Path(directory), environ)
    except ConfigInvalid as error:
        print_report(invalid_report(error))
        return ExitCode.FAILED
    print_report(config_report(config))
    if not config.sources:
        user = places_of(Path(directory), environ).user_directory / "crush.json"
        print_report(Text(f"To configure something, write {user}"))
    return ExitCode.OK


def invalid_report(error: ConfigInvalid) -> RenderableType:
    """Return what is said of a configuration that cannot be used: the file, the place, the reason."""
    file, _, reason = error.detail.partition(": ")
    return Group(
        Text.assemble(("✗ ", "red"), ("The configuration cannot be used.", "bold red")),
        Padding(Group(Text(one_line(file), "bold"), Text(one_line(reason))), (0, 0, 0, 2)),
        Text("Next: correct the file, then check again."),
    )


def config_report(config: LoadedConfig) -> RenderableType:
    """Return what a configuration amounts to. It holds no secrets."""
    return Group(
        _headed(
            "Files, the last one wins", [_source(each) for each in config.sources] or [_NO_FILE]
        ),
        _headed("Models", [_models(config)]),
        _headed("Data directory", [Text(str(config.data_dir))]),
        *(
            [_headed("Notices", [_notice(each) for each in config.warnings])]
            if config.warnings
            else []
        ),
        Text.assemble(("✓ ", "green"), "The configuration can be used."),
    )


_NO_FILE = Text("none: everything is as it comes", "dim")


def _headed(heading: str, lines: list[RenderableType]) -> RenderableType:
    return Group(Text(heading, "bold"), Padding(Group(*lines), (0, 0, 1, 2)))


def _source(source: Source) -> Text:
    whose = source.kind.value
    if not source.may_run:
        whose += ", not trusted: commands in it are not run"
    return Text.assemble(one_line(str(source.path)), (f"  ({whose})", "dim"))


def _models(config: LoadedConfig) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, slot in (("large", config.large), ("small", config.small)):
        table.add_row(name, Text(one_line(f"{slot.selected.provider}/{slot.selected.model}")))
    return table


def _notice(notice: ConfigWarning) -> Text:
    return Text.assemble(("! ", "yellow"), one_line(str(notice)))


@click.group()
def config() -> None:
    """Look at the configuration."""


@config.command()
@click.argument("directory", default=".")
@debug_option
@pass_invocation
def check(invocation: Invocation, directory: str) -> int:
    """Check the configuration of DIRECTORY, by default of this one.

    Prints the files that were read, what was noticed in them, and the models that would answer. A
    file that is not valid ends with exit code 1 and the place of the mistake.
    """

    return invocation.run(check_config, invocation.environ, directory_of(directory))


@config.command()
def schema() -> int:
    """Print the JSON Schema of crush.json, for editors."""
    from crush_trio.config.checks import main

    main()
    return 0
