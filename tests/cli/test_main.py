"""Which command is meant, and what is said when it cannot be."""

import pkgutil
import re
import resource
import subprocess
import sys

import click
import pytest

import crush_trio.cli.commands
from crush_trio.cli.exits import ADVICE, ExitCode, exit_code_of, expected, explain
from crush_trio.cli.main import COMMANDS, cli, main
from crush_trio.client.http import ServerUnreachable
from crush_trio.errors import CrushError, SessionNotFound
from crush_trio.store.errors import StoreLocked


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Look for servers, files and homes where nobody has any."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CRUSH_TRIO_TOKEN", "CRUSH_TRIO_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path / "work")


def misuse(capsys, *arguments):
    """Return what is said to somebody who means nothing sensible."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == ExitCode.MISUSED
    return capsys.readouterr().err


# ── Asking for help ─────────────────────────────────────────────────────────────────────────────


def test_every_command_is_in_the_help_with_the_first_line_of_its_docstring(capsys):
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    for name, (_, line) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", page, re.MULTILINE)
        command = cli.get_command(click.Context(cli), name)
        assert command.help.splitlines()[0] == line, name


def test_every_module_of_a_command_is_in_the_table():
    modules = {each.name for each in pkgutil.iter_modules(crush_trio.cli.commands.__path__)}
    assert modules == {place.partition(":")[0] for place, _ in COMMANDS.values()}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page(capsys, name):
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: crush-trio {name}")


def test_the_exit_codes_are_on_the_page_of_run(capsys):
    main(["run", "--help"])
    page = " ".join(capsys.readouterr().out.split())
    for code in ExitCode:
        assert f"{code.value} " in page


def test_asking_for_the_version_loads_neither_a_server_nor_a_client_nor_a_screen():
    program = (
        "import sys\nfrom crush_trio.cli.main import main\n"
        "main(['--version'])\nmain(['--help'])\nprint(*sys.modules, sep='\\n')"
    )
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    heavy = {"quart", "hypercorn", "httpx", "sqlite3", "rich", "markdown_it", "pygments", "asyncio"}
    assert heavy & set(said.split()) == set()


def test_help_and_version_import_neither_trio_nor_attrs_nor_a_command():
    """The front door is replaced by an empty package: what it imports has a test of its own."""
    program = (
        "import sys, types\n"
        "door = types.ModuleType('crush_trio')\n"
        f"door.__path__, door.__version__ = {list(crush_trio.__path__)!r}, '1'\n"
        "sys.modules['crush_trio'] = door\n"
        "from crush_trio.cli.main import main\n"
        "main(['--version'])\nmain(['--help'])\nprint(*sys.modules, sep='\\n')"
    )
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    loaded = set(said.split())
    assert {"trio", "rich", "attr", "orjson", "logging"} & loaded == set()
    ours = {name for name in loaded if name.startswith("crush_trio.")}
    assert ours == {
        "crush_trio.cli",
        "crush_trio.cli.main",
        "crush_trio.cli.exits",
        "crush_trio.cli.options",
        "crush_trio.errors",
    }


def test_the_version_is_there_at_once():
    """Measured in what it takes of a processor; the bound is three times that on a quiet machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "crush_trio", "--version"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


# ── Meaning nothing sensible ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["frobnicate"], "No such command 'frobnicate'."),
        (["rum"], "No such command 'rum'. Did you mean 'run'?"),
        (["session"], "No such command 'session'. Did you mean 'sessions' or 'permissions'?"),
        (["run", "--policy", "maybe", "x"], "choose from ask, deny, allow"),
        (["run", "--output", "xml", "x"], "choose from text, json, stream-json"),
        (["run", "--timeout", "soon", "x"], "write 0 or more"),
        (["run", "--session", "a", "--continue", "x"], "leave one out"),
        (["run", "--cwd", "nowhere", "x"], "name one that exists"),
        (["attach"], "crush-trio run --session"),
        (["attach", "--new", "abcd"], "leave out SESSION"),
        (["cancel"], "--all"),
        (["cancel", "--all", "abcd"], "--all"),
        (["import", "nowhere"], "does not exist"),
    ],
)
def test_misuse_is_told_with_what_to_do(capsys, arguments, advice):
    assert advice in misuse(capsys, *arguments)


@pytest.mark.parametrize("arguments", [["run", "x"], ["sessions"], ["doctor"], ["config", "check"]])
def test_a_deleted_current_directory_is_one_sentence(capsys, tmp_path, arguments):
    (tmp_path / "work").rmdir()
    said = misuse(capsys, *arguments)
    assert "the current directory no longer exists; change to one that does" in said


# ── Failing ─────────────────────────────────────────────────────────────────────────────────────


def test_no_prompt_at_all_is_answered_with_how_to_give_one(capsys):
    assert main(["run"]) == ExitCode.FAILED
    assert capsys.readouterr().err.splitlines() == [
        "crush-trio: there is no prompt",
        "Next: write it as arguments, or pipe it in",
    ]


def test_a_server_that_is_not_there_is_an_exit_code_of_its_own(capsys):
    assert main(["cancel", "--all"]) == ExitCode.NO_SERVER
    what, following = capsys.readouterr().err.splitlines()
    assert "nothing answers at unix://" in what
    assert following == "Next: start one with: crush-trio serve"


def test_an_address_that_was_asked_for_is_never_replaced_by_a_server_of_our_own(capsys):
    assert main(["run", "--host", "tcp://127.0.0.1:9", "hello"]) == ExitCode.NO_SERVER
    assert "crush-trio serve --host tcp://127.0.0.1:9" in capsys.readouterr().err


def test_debugging_shows_where_an_error_comes_from(capsys):
    assert main(["cancel", "--all", "--debug"]) == ExitCode.NO_SERVER
    assert "Traceback" in capsys.readouterr().err
    main(["cancel", "--all"])
    assert "Traceback" not in capsys.readouterr().err


def test_what_we_did_not_expect_is_not_hidden(monkeypatch):
    @click.command()
    def broken():
        raise ZeroDivisionError

    monkeypatch.setitem(cli.commands, "broken", broken)
    with pytest.raises(ZeroDivisionError):
        main(["broken"])


@pytest.mark.parametrize(
    ("error", "code", "what", "following"),
    [
        (SessionNotFound("'x'"), 1, "session not found: 'x'", ADVICE["session_not_found"]),
        (ServerUnreachable("gone; start it"), 3, "cannot reach the server: gone", "start it"),
        (
            StoreLocked("/d belongs to process 7"),
            1,
            "the data directory is in use; stop its owner or choose another directory: "
            "/d belongs to process 7",
            ADVICE["store_locked"],
        ),
    ],
)
def test_an_error_says_what_happened_and_what_to_do_next(error, code, what, following):
    assert (exit_code_of(error), *explain(error)) == (code, what, following)


def test_a_group_of_expected_errors_is_one_and_any_other_is_not():
    first, second = SessionNotFound("a"), CrushError("b")
    assert expected(BaseExceptionGroup("", [ExceptionGroup("", [first]), second])) is first
    assert expected(ExceptionGroup("", [first, ValueError()])) is None
    assert expected(KeyboardInterrupt()) is None
