"""`crush-trio config`: what is configured, and whether it makes sense."""

import click

from crush_trio.cli.invocation import Invocation, debug_option, directory_of, pass_invocation


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
    from crush_trio.cli.config_report import check_config

    return invocation.run(check_config, invocation.environ, directory_of(directory))


@config.command()
def schema() -> int:
    """Print the JSON Schema of crush.json, for editors."""
    from crush_trio.config.schema import main

    main()
    return 0
