"""Standard output that is closed, or cannot be written to."""

import json
import subprocess

import pytest

from tests.cli.processes import COMMAND, LIMIT, Home

pytestmark = pytest.mark.slow

FULL = "crush-trio: cannot write to standard output: No space left on device\n"


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def call(home, redirection, *arguments):
    """Run a command whose output a shell redirects; return its code and its error output."""
    done = subprocess.run(
        ["bash", "-c", f'"$@" {redirection}', "-", *COMMAND, *arguments],
        cwd=home.work,
        env=home.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "arguments", [["run", "--demo", "-q", "hello"], ["sessions"], ["config", "schema"], ["--help"]]
)
def test_closed_output_is_not_an_error(home, arguments):
    assert call(home, ">&-", *arguments) == (0, "")


def test_closed_output_and_error_output_keep_the_exit_code(home):
    assert call(home, ">&- 2>&-", "config", "schema") == (0, "")
    assert call(home, ">&- 2>&-", "cancel", "--all") == (3, "")


def test_error_output_that_cannot_be_written_keeps_the_exit_code(home):
    """It ended with 1, and an answer was lost because of a note."""
    assert call(home, "2>/dev/full", "cancel", "--all") == (3, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--demo", "-q", "hello"],
        ["run", "--demo", "-o", "stream-json", "hello"],
        ["sessions"],
        ["sessions", "--json"],
        ["permissions"],
        ["config", "schema"],
        ["config", "check"],
        ["serve"],
        ["--help"],
        ["--version"],
    ],
)
def test_a_full_disk_is_one_line_and_exit_code_1(home, arguments):
    code, said = call(home, ">/dev/full", *arguments)
    errors = [line for line in said.splitlines(keepends=True) if " INFO " not in line]
    assert (code, "".join(errors)) == (1, FULL)


def test_the_schema_is_printed_whole(home):
    code, out, _ = home.call("config", "schema")
    assert code == 0
    assert json.loads(out)["$ref"] == "#/$defs/ConfigFile"
