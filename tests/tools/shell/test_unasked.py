"""The environment of unasked commands, and what is read of git's configuration."""

import os

import pytest

from crush_trio.tools.shell.git_repository import Setting, read_settings, reason_to_ask
from crush_trio.tools.shell.unasked import GIT_SETTINGS, unasked_env


def settings(env):
    count = int(env["GIT_CONFIG_COUNT"])
    return [(env[f"GIT_CONFIG_KEY_{n}"], env[f"GIT_CONFIG_VALUE_{n}"]) for n in range(count)]


def test_variables_that_change_what_programs_do_are_removed(tmp_path):
    hostile = dict.fromkeys(
        (
            *("GIT_DIR", "GIT_EXTERNAL_DIFF", "GIT_TRACE", "GIT_CONFIG_PARAMETERS", "LD_PRELOAD"),
            *("GREP_OPTIONS", "RIPGREP_CONFIG_PATH", "POSIXLY_CORRECT", "LESSOPEN", "GLOBIGNORE"),
            *("BASH_ENV", "BASH_FUNC_ls%%", "MAGIC", "SSH_ASKPASS", "_POSIX2_VERSION"),
        ),
        "evil",
    )
    env = unasked_env({**hostile, "HOME": str(tmp_path), "LANG": "C"}, tmp_path)
    assert "evil" not in env.values()
    assert (env["LANG"], env["GIT_ALLOW_PROTOCOL"], env["GIT_NO_LAZY_FETCH"]) == ("C", "", "1")
    assert env["GIT_CONFIG_GLOBAL"] == "/dev/null"
    assert settings(env)[-len(GIT_SETTINGS) :] == list(GIT_SETTINGS)


def test_programs_are_not_searched_in_the_workspace(tmp_path):
    (tmp_path / "ws" / "bin").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "ws" / "bin")
    path = f"bin:.::{tmp_path}/ws/bin:{tmp_path}/link:/usr/bin:{tmp_path}/other"
    env = unasked_env({"PATH": path}, tmp_path / "ws")
    assert env["PATH"] == f"/usr/bin:{tmp_path}/other"
    assert unasked_env({"PATH": "."}, tmp_path)["PATH"] == os.defpath


def test_settings_of_the_user_come_from_all_files_and_only_harmless_ones(tmp_path):
    for name, text in {
        "system": "[safe]\n\tdirectory = /srv\n[core]\n\tpager = less\n",
        "xdg/git/config": "[diff]\n\talgorithm = histogram\n\texternal = difft\n",
        "home/.gitconfig": '[core]\n\texcludesFile = ~/x\n\tquotePath = "false"\n[alias]\n\tx = !sh\n'
        '[include]\n\tpath = more\n[user]\n\tname = \\"A\\"\n',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    given = {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": str(tmp_path / "xdg"),
        "GIT_CONFIG_SYSTEM": str(tmp_path / "system"),
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_CONFIG_KEY_1": "core.sshCommand",
        "GIT_CONFIG_VALUE_1": "evil",
    }
    assert settings(unasked_env(given, tmp_path))[: -len(GIT_SETTINGS)] == [
        ("safe.directory", "/srv"),
        ("diff.algorithm", "histogram"),
        ("core.excludesfile", "~/x"),
        ("core.quotepath", "false"),
        ("safe.directory", "*"),
    ]


@pytest.mark.parametrize("count", ["", "many", "-1", "²", "9999999999"])
def test_a_count_that_is_none_counts_as_nothing(count, tmp_path):
    env = unasked_env({"GIT_CONFIG_COUNT": count, "GIT_CONFIG_NOSYSTEM": "1"}, tmp_path)
    assert settings(env) == list(GIT_SETTINGS)


@pytest.mark.parametrize(
    "line",
    [
        "x = \\",
        "x = a\\",
        "x\x0b= 1",
        "x = a\rb",
        "1x = 1",
        "x y = 1",
        "[a]b=c",
        '[a "b\\"c"]',
        "[a.b]",
        "[",
        "]",
        "\ufeff[a]",
        "= 1",
        "x_y = 1",
    ],
)
def test_a_line_that_is_not_certain_is_not_understood(line):
    assert None in list(read_settings(f"[core]\n{line}\n\tbare = false\n"))


def test_settings_are_read_with_their_section():
    text = 'x = 1\n[Core] ; c\n\tBare\n\tx= "a b" \n# c\r\n[remote "O r"]\r\n  URL = a # c\n'
    assert list(read_settings(text)) == [
        None,
        Setting("core", None, "bare", "true"),
        Setting("core", None, "x", "a b"),
        Setting("remote", "O r", "url", None),
    ]


@pytest.mark.parametrize("name", ["config", "config.worktree"])
@pytest.mark.parametrize("kind", ["pipe", "directory", "loop", "large"])
def test_a_configuration_that_cannot_be_read_asks_and_does_not_wait(name, kind, tmp_path):
    path = tmp_path.resolve() / ".git" / name
    path.parent.mkdir()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "large":
            path.write_text("#" * (1024 * 1024 + 1))
    assert reason_to_ask(tmp_path.resolve(), tmp_path.resolve()) is not None


def test_a_directory_without_a_repository_needs_no_question(tmp_path):
    assert reason_to_ask(tmp_path.resolve(), tmp_path.resolve()) is None
