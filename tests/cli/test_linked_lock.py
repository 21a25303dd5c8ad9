"""A checkout whose data directory has a link in place of the lock: the attack, with real programs."""

import subprocess

import pytest

from tests.cli.processes import Home

pytestmark = [pytest.mark.slow, pytest.mark.heavy]


@pytest.mark.needs("git")
@pytest.mark.item("J3")
def test_a_cloned_lock_that_is_a_link_does_not_empty_the_users_file(tmp_path):
    home = Home(tmp_path)
    keys = tmp_path / "home" / ".ssh" / "authorized_keys"
    keys.parent.mkdir()
    keys.write_text("ssh-ed25519 AAAA me\n")
    origin = tmp_path / "origin"
    (origin / ".crush").mkdir(parents=True)
    (origin / ".crush" / "crush-trio.lock").symlink_to(keys)

    def git(*arguments):
        subprocess.run(["git", *arguments], check=True, env=home.environ, capture_output=True)

    git("init", str(origin))
    git("-C", str(origin), "add", "--force", "--all")
    git("-C", str(origin), "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-m", "x")
    git("clone", str(origin), str(home.work / "clone"))
    code, _, told = home.call("run", "hello", cwd=home.work / "clone")
    assert keys.read_text() == "ssh-ed25519 AAAA me\n"
    assert code != 0
    assert "crush-trio.lock is a symbolic link" in told
    assert "move it away" in told
