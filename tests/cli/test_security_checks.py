"""`doctor --security`: what it tries, and that it notices what is not prevented."""

import os
import socket
from pathlib import Path

import pytest
from attrs import evolve

from crush_trio.agent.turn import planner
from crush_trio.cli import security_checks
from crush_trio.cli.configuration import configuration_of
from crush_trio.cli.main import main
from crush_trio.cli.report.findings import Level
from crush_trio.cli.security_checks import (
    Still,
    address_findings,
    configuration_findings,
    describe_sandbox,
    held,
)
from crush_trio.config.files import CommandPolicy, SandboxConfig, SandboxMode, SandboxNetwork
from crush_trio.tools.sandbox.confinement import SandboxKind
from crush_trio.tools.sandbox.machine import MachineSandbox
from crush_trio.tools.sandbox.probe import SandboxFound
from crush_trio.tools.sandbox.settings import CommandSandbox
from crush_trio.wire.config import PermissionsConfig

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]
BUBBLEWRAP = SandboxFound(kind=SandboxKind.BUBBLEWRAP)
NONE = SandboxFound(kind=SandboxKind.NONE, reasons=("bubblewrap is not installed",))


@pytest.fixture
def environ(tmp_path, monkeypatch):
    for name in ("home/.ssh", "work", "run"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home" / ".ssh" / "id").write_text("secret")
    kept = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(tmp_path / "home"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
    }
    monkeypatch.setattr(os, "environ", kept)
    monkeypatch.chdir(tmp_path / "work")
    return kept


async def loaded(environ, **sandbox):
    config = await configuration_of(Path.cwd(), environ)
    return evolve(config, sandbox=SandboxConfig(**sandbox))


def written(path, text):
    """Write a file that others can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o644)
    return path


def levels(findings):
    return {finding.subject: finding.level for finding in findings}


@pytest.mark.needs("bwrap")
def test_a_safe_machine_passes_and_nothing_is_changed(capsys, environ, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    assert main(["doctor", "--security"]) == 0
    report = capsys.readouterr().out
    assert "bubblewrap holds commands" in report
    for subject in ("unasked writes", "unasked reads", "writes outside", "private files", "git"):
        assert f"✓ {subject}" in report
    assert "✗" not in report
    assert sorted(tmp_path.rglob("*")) == before


async def test_a_sandbox_that_does_not_hold_is_a_failure(environ, monkeypatch):
    """Whatever is not prevented is found: here nothing is, because no sandbox is used."""
    config = await loaded(environ, network=SandboxNetwork.OFF)
    sandbox = CommandSandbox(live=Still(config), machine=MachineSandbox(SandboxKind.BUBBLEWRAP))
    real = security_checks._run
    monkeypatch.setattr(security_checks, "_run", lambda box, argv, _: real(box, argv, None))
    findings = await held(sandbox)
    assert set(levels(findings).values()) == {Level.FAIL}
    assert len(findings) == 6
    assert all("hole" in finding.advice for finding in findings)
    assert security_checks.MARK not in os.listdir(environ["HOME"])  # noqa: PTH208


async def test_a_sandbox_that_cannot_run_is_no_success(environ, monkeypatch):
    async def broken(*_):
        raise OSError("no namespaces")

    config = await loaded(environ)
    sandbox = CommandSandbox(live=Still(config), machine=MachineSandbox(SandboxKind.BUBBLEWRAP))
    monkeypatch.setattr(security_checks, "_run", broken)
    found = levels(await held(sandbox))
    assert found.pop("network") is Level.OK  # it is on, as configured
    assert set(found.values()) == {Level.WARN}


@pytest.mark.needs("git")
async def test_a_program_that_a_repository_names_would_be_noticed(environ, monkeypatch):
    """Also on a machine with a sandbox, in which it could not leave its mark."""

    async def git():
        findings = await security_checks.check_security(environ, None, await loaded(environ))
        return levels(findings)["git"]

    assert await git() is Level.OK
    monkeypatch.setattr(planner, "reason_to_ask", lambda *_: None)
    monkeypatch.setattr(planner, "unasked_env", lambda env, _: {**env, "PATH": os.environ["PATH"]})
    assert await git() is Level.FAIL


@pytest.mark.parametrize(
    ("mode", "found", "level", "text"),
    [
        (SandboxMode.AUTO, BUBBLEWRAP, Level.OK, "bubblewrap holds"),
        (SandboxMode.AUTO, NONE, Level.WARN, "none: what you approve runs with all your rights"),
        (SandboxMode.REQUIRE, NONE, Level.FAIL, "none: commands are refused"),
        (SandboxMode.OFF, BUBBLEWRAP, Level.WARN, "off: "),
    ],
)
async def test_it_says_which_sandbox_holds(environ, mode, found, level, text):
    [finding, *_] = describe_sandbox(await loaded(environ, mode=mode), found)
    assert (finding.level, finding.text[: len(text)]) == (level, text)


async def test_what_landlock_lacks_and_what_runs_unasked_is_said(environ, monkeypatch):
    # A user without sockets below /tmp: the more there is to tell, the less of it is told.
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    found = SandboxFound(kind=SandboxKind.LANDLOCK, reasons=("bubblewrap is not installed",))
    written(Path("crush.json"), "{}")
    findings = describe_sandbox(await loaded(environ, commands=CommandPolicy.ALLOW), found)
    assert [finding.level for finding in findings] == [Level.OK, Level.WARN, Level.OK]
    assert "crush.json is not protected" in findings[1].text


def test_the_socket_must_be_the_users_alone(environ, tmp_path):
    [address, token] = address_findings(environ, None)
    assert (address.level, token.level) == (Level.OK, Level.OK)
    path = tmp_path / "run" / "s.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o666)
        assert address_findings(environ, f"unix://{path}")[0].level is Level.WARN
        path.chmod(0o600)
        assert address_findings(environ, f"unix://{path}")[0].level is Level.OK
        path.parent.chmod(0o777)
        assert address_findings(environ, f"unix://{path}")[0].level is Level.WARN
        path.parent.chmod(0o700)
    path.unlink()
    path.touch()
    assert address_findings(environ, f"unix://{path}")[0].level is Level.FAIL


def test_a_port_should_have_a_token(environ):
    host = "tcp://127.0.0.1:9"
    assert address_findings(environ, host)[0].level is Level.WARN
    assert address_findings({**environ, "CRUSH_TRIO_TOKEN": "x" * 40}, host)[0].level is Level.OK


async def test_wide_trust_unasked_tools_and_readable_keys_are_warned_of(environ):
    file = written(
        Path(environ["HOME"], ".config", "crush", "crush.json"),
        '{"crush_trio": {"trusted_directories": ["/"]}}',
    )
    config = await loaded(environ)
    allowed = evolve(config.config, permissions=PermissionsConfig(allowed_tools=("bash",)))
    findings = configuration_findings(evolve(config, config=allowed))
    assert levels(findings) == dict.fromkeys(("trust", "permissions", "files"), Level.WARN)
    assert findings[-1].advice == f"chmod 600 {file}"
