"""`crush-trio config`: check the configuration of a directory, or print the JSON Schema."""

from collections.abc import Mapping
from pathlib import Path

import click
import trio
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from crush_trio.cli.configuration import configuration_of, places_of
from crush_trio.cli.exits import ExitCode
from crush_trio.cli.options import (
    Invocation,
    debug_option,
    directory_of,
    json_text,
    pass_invocation,
    print_report,
    write,
)
from crush_trio.cli.terminal.text import one_line
from crush_trio.config.errors import ConfigInvalid, ConfigWarning
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import Source

_NO_FILE = Text("none: the defaults are used", "dim")


@click.group()
def config() -> None:
    """Check the configuration, or print its JSON Schema."""


@config.command()
@click.argument("directory", default=".")
@debug_option
@pass_invocation
def check(invocation: Invocation, directory: str) -> int:
    """Check the configuration of DIRECTORY, by default the current one.

    Prints the files that were read, the models that would be used, and warnings. If a file is not
    valid, prints where the error is and exits with code 1.
    """
    return invocation.run(
        check_config, invocation.environ, directory_of(directory, hint="DIRECTORY")
    )


@config.command()
def schema() -> int:
    """Print the JSON Schema of crush.json, for editors."""
    from crush_trio.config.checks import file_schema

    write(json_text(file_schema(), indent=True))
    return 0


async def check_config(environ: Mapping[str, str], directory: str) -> int:
    """Print a report on the configuration of a directory; return the exit code."""
    await trio.lowlevel.checkpoint()
    try:
        config = await configuration_of(Path(directory), environ)
    except ConfigInvalid as error:
        print_report(invalid_report(error))
        return ExitCode.FAILED
    print_report(config_report(config))
    if not config.sources:
        user = places_of(Path(directory), environ).user_directory / "crush.json"
        print_report(Text(f"To change the configuration, create {user}"))
    return ExitCode.OK


def invalid_report(error: ConfigInvalid) -> RenderableType:
    """Return the report on a configuration that is not valid: the file, and what is wrong where."""
    file, _, reason = error.detail.partition(": ")
    return Group(
        Text.assemble(("✗ ", "red"), ("The configuration is not valid.", "bold red")),
        Padding(Group(Text(one_line(file), "bold"), Text(one_line(reason))), (0, 0, 0, 2)),
        Text("Next: correct the file, then check again."),
    )


def config_report(config: LoadedConfig) -> RenderableType:
    """Return the report on a valid configuration. It contains no secrets."""
    return Group(
        _headed(
            "Files, the last one wins", [_source(each) for each in config.sources] or [_NO_FILE]
        ),
        _headed("Models", [_models(config)]),
        _headed("Data directory", [Text(str(config.data_dir))]),
        *(
            [_headed("Warnings", [_warning(each) for each in config.warnings])]
            if config.warnings
            else []
        ),
        Text.assemble(("✓ ", "green"), "The configuration is valid."),
    )


def _headed(heading: str, lines: list[RenderableType]) -> RenderableType:
    return Group(Text(heading, "bold"), Padding(Group(*lines), (0, 0, 1, 2)))


def _source(source: Source) -> Text:
    kind = source.kind.value
    if not source.may_run:
        kind += ", not trusted: commands in it are not run"
    return Text.assemble(one_line(str(source.path)), (f"  ({kind})", "dim"))


def _models(config: LoadedConfig) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, slot in (("large", config.large), ("small", config.small)):
        table.add_row(name, Text(one_line(f"{slot.selected.provider}/{slot.selected.model}")))
    return table


def _warning(notice: ConfigWarning) -> Text:
    return Text.assemble(("! ", "yellow"), one_line(str(notice)))
