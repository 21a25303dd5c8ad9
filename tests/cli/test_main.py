"""Which command is meant, and what is said when it cannot be."""

import io
import os
import pkgutil
import re
import resource
import signal
import subprocess
import sys

import click
import pytest

import crush_trio.cli.commands
from crush_trio.cli.exits import ADVICE, ExitCode, RuleUnknown, exit_code_of, expected, explain
from crush_trio.cli.main import COMMANDS, cli, main
from crush_trio.cli.options import choose_address
from crush_trio.client.http import ApiError, ServerUnreachable
from crush_trio.config.errors import ConfigNotWritten
from crush_trio.errors import CrushError, PathInvalid, SessionNotFound
from crush_trio.net.address import TcpAddress, default_address
from crush_trio.server.settings import ServerSettings
from crush_trio.store.errors import StoreLocked


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Look for servers, files and homes where nobody has any."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("CRUSH_TRIO_BACKGROUND", "0")
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
    package = crush_trio.cli.commands
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    modules = {each.name.removeprefix(f"{package.__name__}.") for each in found if not each.ispkg}
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


def imported_by(*arguments, **variables):
    """Return what the program imports when it is called so, as `-X importtime` tells it."""
    command = [sys.executable, "-X", "importtime", "-m", "crush_trio", *arguments]
    done = subprocess.run(
        command, capture_output=True, check=False, text=True, env={**os.environ, **variables}
    )
    told = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    return done.stdout, set(told)


def test_names_of_commands_are_completed_without_importing_one():
    line = {"COMP_WORDS": "crush-trio se", "COMP_CWORD": "1"}
    said, loaded = imported_by(_CRUSH_TRIO_COMPLETE="bash_complete", **line)
    assert said.split() == ["plain,serve", "plain,sessions"]
    assert {"trio", "rich", "attr", "orjson"} & loaded == set()
    assert not [name for name in loaded if name.startswith("crush_trio.cli.commands")]


OF_A_SERVER = {"quart", "hypercorn", "sqlite3", "crush_trio.config.load", "crush_trio.server"}
OF_A_TERMINAL = {"rich.markdown", "markdown_it", "pygments", "crush_trio.cli.report.terminal"}


@pytest.mark.parametrize("command", ["run", "sessions", "ps", "attach"])
def test_a_command_that_asks_a_server_imports_no_part_of_one(command):
    """Nor what draws answers, before there is one to draw."""
    _, loaded = imported_by(command, "--help")
    assert "crush_trio.cli.server_link" in loaded
    kept = {"crush_trio.cli.report.terminal"} if command == "attach" else set()
    assert loaded & (OF_A_SERVER | OF_A_TERMINAL) - kept == set()
    assert not [name for name in loaded if name.startswith("crush_trio.tools.s")]


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
        (["run", "-fix", "it"], "Write -- before a prompt that begins with a dash"),
        (["config", "check", "nowhere"], "for DIRECTORY: 'nowhere' is not a directory"),
        (["trust", "nowhere"], "for DIRECTORY: 'nowhere' is not a directory"),
        (["trust", "--list", "."], "leave out DIRECTORY"),
    ],
)
def test_misuse_is_told_with_what_to_do(capsys, arguments, advice):
    assert advice in misuse(capsys, *arguments)


@pytest.mark.parametrize("arguments", [["run", "x"], ["sessions"], ["doctor"], ["config", "check"]])
def test_a_deleted_current_directory_is_one_sentence(capsys, tmp_path, arguments):
    (tmp_path / "work").rmdir()
    said = misuse(capsys, *arguments)
    assert "the current directory no longer exists; change to one that does" in said


@pytest.mark.parametrize("arguments", [["run", "x"], ["sessions"], ["doctor"], ["trust"]])
def test_a_directory_whose_name_is_not_utf_8_is_told_as_such(
    capsys, monkeypatch, tmp_path, arguments
):
    """The server said that it does not exist."""
    odd = tmp_path / os.fsdecode(b"bad\xff")
    odd.mkdir()
    monkeypatch.chdir(odd)
    assert "is not valid UTF-8; rename the directory" in misuse(capsys, *arguments)


# ── Output that cannot be written ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["run", "--help"], ["trust", "-l"]]
)
def test_output_that_nobody_reads_is_an_exit_code_of_its_own(monkeypatch, arguments):
    """Click's own output ended with 1."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    assert ended.value.code == 141


def test_good_and_bad_look_different_in_an_encoding_without_their_marks(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    main(["--version"])
    sys.stdout.write("✓ ✗ … 日")
    sys.stdout.flush()
    assert written.getvalue().endswith(b"\n+ x ... ?")


# ── Failing ─────────────────────────────────────────────────────────────────────────────────────


def test_no_prompt_at_all_is_answered_with_how_to_give_one(capsys):
    assert main(["run"]) == ExitCode.MISUSED
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


def test_an_address_without_a_scheme_is_answered_with_the_whole_address(capsys):
    assert main(["run", "--host", "127.0.0.1:8765", "hello"]) == ExitCode.MISUSED
    assert capsys.readouterr().err.splitlines() == [
        "crush-trio: not the address of a server: '127.0.0.1:8765': there is no scheme",
        "Next: write tcp://127.0.0.1:8765",
    ]


def test_the_environment_names_the_server_as_the_option_does(capsys, monkeypatch):
    monkeypatch.setenv("CRUSH_TRIO_HOST", "tcp://127.0.0.1:9")
    assert main(["run", "hello"]) == ExitCode.NO_SERVER
    assert "crush-trio serve --host tcp://127.0.0.1:9" in capsys.readouterr().err
    assert main(["run", "--host", "tcp://127.0.0.1:10", "hello"]) == ExitCode.NO_SERVER
    assert "crush-trio serve --host tcp://127.0.0.1:10" in capsys.readouterr().err


def test_a_bad_address_in_the_environment_is_told_with_the_name_of_the_variable(
    capsys, monkeypatch
):
    monkeypatch.setenv("CRUSH_TRIO_HOST", "127.0.0.1:8765")
    assert main(["run", "hello"]) == ExitCode.MISUSED
    assert capsys.readouterr().err.splitlines() == [
        "crush-trio: not the address of a server: CRUSH_TRIO_HOST is '127.0.0.1:8765': there is no scheme",
        "Next: write tcp://127.0.0.1:8765",
    ]


def test_a_server_does_not_listen_where_the_environment_sends_its_clients(tmp_path):
    environ = {"CRUSH_TRIO_HOST": "tcp://127.0.0.1:9", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert choose_address(None, environ, 7) == TcpAddress("127.0.0.1", 9)
    listened = choose_address(None, environ, 7, listen=True)
    assert listened == default_address(environ, 7)
    assert "CRUSH_TRIO_HOST" not in ServerSettings.from_environment(environ).environment


CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
class Importing:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Importing())
"""


def test_ctrl_c_during_the_imports_ends_the_program_without_a_word(tmp_path):
    """It printed the traceback of the import."""
    (tmp_path / "sitecustomize.py").write_text(CTRL_C.format(name="crush_trio.cli.options"))
    done = subprocess.run(
        [sys.executable, "-m", "crush_trio", "run", "hello"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


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
        (
            PathInvalid('/x does not exist; make it, or send "create": true'),
            1,
            "path is not a usable directory: /x does not exist",
            ADVICE["path_invalid"],
        ),
        (ServerUnreachable("gone; start it"), 3, "cannot reach the server: gone", "start it"),
        (
            StoreLocked("/d belongs to process 7"),
            1,
            "the data directory is in use: /d belongs to process 7",
            ADVICE["store_locked"],
        ),
        (
            ConfigNotWritten("/f: Read-only file system"),
            1,
            "the configuration could not be written and was left unchanged: /f: Read-only file system",
            "make the file and its directory writable for this user, or free some space",
        ),
        (
            RuleUnknown("nope"),
            1,
            "there is no such permission rule: nope",
            "list them with: crush-trio permissions",
        ),
        (ApiError("odd; look there", code="x", status=418), 1, "odd", "look there"),
    ],
)
def test_an_error_says_what_happened_and_what_to_do_next(error, code, what, following):
    assert (exit_code_of(error), *explain(error)) == (code, what, following)


def test_a_group_of_expected_errors_is_one_and_any_other_is_not():
    first, second = SessionNotFound("a"), CrushError("b")
    assert expected(BaseExceptionGroup("", [ExceptionGroup("", [first]), second])) is first
    assert expected(ExceptionGroup("", [first, ValueError()])) is None
    assert expected(KeyboardInterrupt()) is None
