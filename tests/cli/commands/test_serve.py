"""What `crush-trio` makes of its arguments and its environment, and how it says no."""

import importlib
import math
import socket
import tomllib
from pathlib import Path, PurePosixPath

import pytest
import trio

from crush_trio import __version__
from crush_trio.__main__ import start
from crush_trio.cli.commands.serve import (
    choose_settings,
    page_line,
    page_lines,
    serve_until_signal,
    socket_group,
    socket_mode,
)
from crush_trio.cli.exits import ExitCode
from crush_trio.cli.main import main
from crush_trio.cli.options import choose_address
from crush_trio.limits import SizeLimits
from crush_trio.net.address import parse_address
from crush_trio.server import ServerSettings, TcpAddress, UnixAddress
from crush_trio.server.settings import GuardSettings
from crush_trio.store.open import StoreSettings

TOKEN = "a-token-of-enough-characters"


# ── Choosing ────────────────────────────────────────────────────────────────────────────────────


def test_the_address_is_the_one_asked_for_or_the_one_clients_look_for():
    environ = {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert choose_address("tcp://127.0.0.1:1", environ, 7) == TcpAddress("127.0.0.1", 1)
    default = UnixAddress(PurePosixPath("/run/user/7/crush-7.sock"))
    assert choose_address(None, environ, 7) == default


@pytest.mark.parametrize(
    ("option", "variable", "seconds"),
    [
        (None, None, math.inf),
        (None, "", math.inf),
        (None, "60", 60.0),
        (None, "0", 0.0),
        (5.0, None, 5.0),
        (5.0, "60", 5.0),
    ],
)
def test_a_server_stays_unless_an_option_or_the_environment_says_how_long(
    option, variable, seconds
):
    environ = {} if variable is None else {"CRUSH_SERVER_IDLE_TIMEOUT": variable}
    backend = choose_settings(option, environ).backend
    assert (backend.idle_linger, backend.replaceable) == (seconds, False)


def test_an_idle_timeout_changes_nothing_else_of_the_environment():
    environ = {"CRUSH_SERVER_DETACH_GRACE": "7", "CRUSH_TRIO_TOKEN": TOKEN}
    settings = choose_settings(5.0, environ)
    assert settings.backend.detach_grace == 7.0
    assert settings.guard.token == TOKEN


def test_limits_of_the_command_line_win_over_the_environment_and_that_over_the_users_file(tmp_path):
    file = tmp_path / ".config" / "crush" / "crush.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"crush_trio": {"limits": {"queue": 1, "title": 2, "prompt": "3KiB"}}}')
    environ = {"HOME": str(tmp_path), "CRUSH_TRIO_LIMITS": "queue=4,title=5"}
    settings = choose_settings(None, environ, {"queue": 6})
    assert settings.sizes == SizeLimits(queue=6, title=5, prompt=3072)


async def test_every_address_that_is_named_is_served(monkeypatch, tmp_path):
    """The last one was, and nothing told about the others."""
    paths = [UnixAddress(PurePosixPath(tmp_path, name)) for name in ("one", "two")]
    said = []
    async with trio.open_nursery() as nursery:

        def hear(text):
            said.append(text.partition(". ")[0])
            if len(said) == len(paths):
                assert all(Path(each.path).is_socket() for each in paths)
                nursery.cancel_scope.cancel()

        monkeypatch.setattr("crush_trio.cli.commands.serve.write", hear)
        nursery.start_soon(serve_until_signal, paths, ServerSettings(audit=None), 0)
    assert said == [f"Listening on {each}" for each in paths]


# ── The page ────────────────────────────────────────────────────────────────────────────────────

CODED = GuardSettings(token=TOKEN, login_code="the-code")


@pytest.mark.parametrize(
    ("address", "guard", "lines"),
    [
        ("unix:///s", CODED, []),
        ("tcp://127.0.0.1:80", GuardSettings(login_code="c"), ["The page: http://127.0.0.1:80/"]),
        ("tcp://localhost:80", GuardSettings(), ["The page: http://localhost:80/"]),
        (
            "tcp://[::1]:80",
            CODED,
            ["The page, logged in once within 10 minutes: http://[::1]:80/#login=the-code"],
        ),
        (
            "tcp://0.0.0.0:80",
            CODED,
            ["The page, logged in once within 10 minutes: http://127.0.0.1:80/#login=the-code"],
        ),
        ("tcp://127.0.0.1:80", CODED.behind("https://a.example"), []),
    ],
)
def test_the_page_is_named_where_a_browser_can_open_it(address, guard, lines):
    assert page_lines(parse_address(address), guard) == lines


def test_an_address_of_the_network_has_to_be_named_for_the_page():
    [line] = page_lines(parse_address("tcp://10.0.0.1:80"), CODED)
    assert "--public-url" in line


def test_the_link_has_the_public_address():
    guard = CODED.behind("https://a.example")
    assert page_line(guard.public_url, guard).endswith(" https://a.example/#login=the-code")


def test_the_environment_may_name_the_public_address():
    settings = choose_settings(None, {"CRUSH_TRIO_PUBLIC_URL": "https://a.example"})
    assert settings.guard.hosts == {"a.example"}


def test_a_public_address_without_a_token_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    arguments = ["serve", "--host", "tcp://127.0.0.1:0", "--public-url", "https://a.example"]
    assert main(arguments) == ExitCode.MISUSED
    assert "without a token" in sentence(capsys)


def test_a_public_address_that_no_page_can_have_is_a_misuse(capsys):
    arguments = ["serve", "--host", "tcp://127.0.0.1:0", "--public-url", "https://a.example/x"]
    assert main(arguments) == ExitCode.MISUSED
    assert "without a path" in sentence(capsys)


# ── Refusing ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in ("CRUSH_TRIO_TOKEN", "CRUSH_TRIO_TOKEN_FILE", "CRUSH_SERVER_IDLE_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)


def sentence(capsys):
    """Return what was said in two lines, what happened and what to do, and nothing on standard output."""
    said = capsys.readouterr()
    assert said.out == ""
    what, *following = said.err.splitlines()
    assert what.startswith("crush-trio: ")
    assert all(line.startswith("Next: ") for line in following)
    assert len(following) <= 1
    return said.err


def test_an_address_that_cannot_be_meant_is_answered_with_one_that_can(capsys):
    assert main(["serve", "--host", "127.0.0.1:80"]) == ExitCode.MISUSED
    assert "write tcp://127.0.0.1:80\n" in sentence(capsys)


def test_listening_to_the_world_without_a_token_is_refused(capsys):
    assert main(["serve", "--host", "tcp://0.0.0.0:0"]) == ExitCode.MISUSED
    assert "without a token" in sentence(capsys)


def test_an_unusable_token_is_refused_and_not_shown(capsys, monkeypatch):
    monkeypatch.setenv("CRUSH_TRIO_TOKEN", "short")
    assert main(["serve", "--host", "tcp://127.0.0.1:0"]) == ExitCode.MISUSED
    assert "short" not in sentence(capsys)


def test_the_store_is_the_one_of_the_option_or_of_the_environment():
    url = "postgresql://u:secret-of-the-url@h/d"
    environ = {"CRUSH_TRIO_STORE": url, "A": "1"}
    settings = choose_settings(None, environ)
    assert settings.store == StoreSettings(url)
    assert settings.environment == {"A": "1"}  # commands of agents do not see it
    assert "secret-of-the-url" not in repr(settings)
    assert settings.secrets == ("secret-of-the-url",)
    assert choose_settings(None, {}).store == StoreSettings("sqlite:")


@pytest.mark.parametrize("url", ["oracle://u:secret@h/d", "postgresql:name", ""])
def test_a_store_that_there_is_not_is_refused_before_anything_is_served(capsys, url):
    assert main(["serve", "--store", url]) == ExitCode.MISUSED
    line = sentence(capsys)
    assert "use `sqlite:`, `memory:` or `postgresql://HOST/DATABASE`" in line
    assert "secret" not in line


def test_a_site_without_a_readable_name_is_refused(capsys):
    assert main(["serve", "--site", "a\tb"]) == ExitCode.MISUSED
    assert "a site is a name" in sentence(capsys)


def test_a_port_that_is_taken_is_said_to_be(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--host", f"tcp://127.0.0.1:{port}"]) == ExitCode.FAILED
    line = sentence(capsys)
    assert str(port) in line
    assert "choose another address" in line


def test_a_folder_that_does_not_exist_is_named(capsys, tmp_path):
    assert main(["serve", "--host", f"unix://{tmp_path}/nowhere/s.sock"]) == ExitCode.FAILED
    assert "nowhere" in sentence(capsys)


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "soon", ""])
@pytest.mark.parametrize("option", ["--grace", "--idle-timeout"])
def test_a_time_that_nobody_can_wait_for_is_a_misuse(capsys, option, text):
    with pytest.raises(SystemExit) as ended:
        main(["serve", f"{option}={text}"])
    assert ended.value.code == ExitCode.MISUSED
    assert "seconds" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0066", "600x", "888", "0400", "1660", "rw", ""])
def test_a_mode_that_a_socket_cannot_have_is_a_misuse(capsys, text):
    with pytest.raises(SystemExit) as ended:
        main(["serve", f"--socket-mode={text}"])
    assert ended.value.code == ExitCode.MISUSED
    assert "such as 0660" in " ".join(capsys.readouterr().err.split())


def test_a_group_that_there_is_not_is_a_misuse(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--socket-group", "no such group"])
    assert ended.value.code == ExitCode.MISUSED
    assert "no group" in " ".join(capsys.readouterr().err.split())


def test_modes_and_groups_are_numbers():
    assert [socket_mode(text) for text in ("600", "0660", "666")] == [0o600, 0o660, 0o666]
    assert (socket_group("root"), socket_group("12345")) == (0, 12345)


def test_a_socket_for_every_user_without_a_token_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    path = tmp_path / "s"
    assert main(["serve", "--host", f"unix://{path}", "--socket-mode", "0666"]) == ExitCode.MISUSED
    assert "--socket-group" in sentence(capsys)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("answers=1", "write one of answer, tool_output"), ("answer=much", "such as 65536, 64KiB")],
)
def test_a_limit_that_makes_no_sense_is_a_misuse_that_says_what_to_write(capsys, text, sentence):
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--limit", "queue=3", "--limit", text])
    assert ended.value.code == ExitCode.MISUSED
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_a_wrong_limit_in_the_environment_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("CRUSH_TRIO_LIMITS", "queue=-1")
    assert main(["serve", "--host", "tcp://127.0.0.1:0"]) == ExitCode.MISUSED
    assert "CRUSH_TRIO_LIMITS: queue cannot be '-1'" in sentence(capsys)


# ── Around it ───────────────────────────────────────────────────────────────────────────────────


def test_the_console_script_is_this_function():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))
    module, _, name = project["project"]["scripts"]["crush-trio"].partition(":")
    assert getattr(importlib.import_module(module), name) is start


def test_it_knows_its_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"crush-trio {__version__}\n"
