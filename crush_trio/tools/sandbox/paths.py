"""The paths of a sandbox: what commands may write, what is protected there, and what is hidden.

*Writable* are caches of package managers, each as narrow as it can be: a directory with programs, such
as `~/.cargo/bin`, or with settings that name programs is not among them. What a command left there would
run later, outside any sandbox.

*Protected* are the files that decide what later programs run: the configuration and hooks of a
repository, our own configuration, the start-up files of shells. The hooks are protected also if there
are none yet, and so is the configuration of a project that the user trusts: a new file would count at
once. Other names that do not exist are *watched*: the result of a command that made one says so.

*Hidden* is what is private or leads out of the sandbox: keys, tokens, browser profiles, and the sockets of
programs that run commands for their clients, such as Docker, tmux and the session's message bus.

Paths below the home directory are relative to it. Everything here reads the disk.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from attrs import frozen

from crush_trio.config.sources import (
    DATA_NAME,
    PROJECT_NAMES,
    Trusted,
    account_home,
    find_project,
    is_trusted,
)
from crush_trio.tools.shell.git_repository import read_regular


def _paths(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CACHES: Final = _paths(
    ".cache .npm .yarn/berry .local/share/pnpm/store .bun/install/cache .deno/deps"
    " .cargo/registry .cargo/git .cargo/.package-cache go/pkg .m2/repository"
    " .gradle/caches .gradle/wrapper .gradle/daemon .gradle/native .gradle/workers .gradle/.tmp"
    " .ivy2 .sbt/boot .nuget/packages .pub-cache/hosted .conda/pkgs .cabal/packages .stack/pantry"
    " .composer/cache .hex/packages .terraform.d/plugin-cache .ccache Library/Caches"
)
"""Caches of package managers and compilers."""

CACHE_VARIABLES: Final = _paths(
    "XDG_CACHE_HOME GOCACHE GOMODCACHE npm_config_cache PIP_CACHE_DIR UV_CACHE_DIR POETRY_CACHE_DIR"
    " YARN_CACHE_FOLDER CCACHE_DIR SCCACHE_DIR"
)
"""Variables that name such a cache elsewhere."""

START_UP: Final = _paths(
    ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile"
    " .zlogin .zlogout .kshrc .cshrc .tcshrc .login .config/fish .config/nushell .inputrc .xprofile"
    " .xinitrc .xsession .xsessionrc .pam_environment .config/environment.d .config/autostart"
    " .config/systemd .gitconfig .config/git .tmux.conf .config/tmux .vimrc .vim .config/nvim .emacs"
    " .emacs.d .config/emacs .pythonrc.py .config/direnv .ssh .local/bin bin .cargo/bin .cargo/env"
    " .cargo/config .cargo/config.toml .gradle/init.d .gradle/init.gradle .gradle/gradle.properties"
    " .m2/settings.xml .config/pip .npmrc .yarnrc .yarnrc.yml .config/crush .local/share/crush"
)
"""Files and directories of the home directory that decide what later programs run."""

PRIVATE: Final = _paths(
    ".ssh .gnupg .aws .azure .config/gcloud .kube .docker/config.json .oci .config/doctl .vault-token"
    " .terraform.d/credentials.tfrc.json .config/gh .config/hub .config/glab-cli .netrc .git-credentials"
    " .config/git/credentials .pypirc .npmrc .cargo/credentials .cargo/credentials.toml .gem/credentials"
    " .pgpass .my.cnf .password-store .local/share/keyrings .config/op .config/1Password"
    " .config/Bitwarden .config/keepassxc .config/sops .mozilla .thunderbird .config/google-chrome"
    " .config/chromium .config/BraveSoftware .config/microsoft-edge .config/vivaldi .config/opera"
    " snap/firefox snap/chromium .claude/.credentials.json .codex/auth.json .gemini/oauth_creds.json"
    " .config/github-copilot .bash_history .zsh_history .local/share/fish .python_history .Xauthority"
)
"""Private files and directories of the home directory."""

OWN_STATE: Final = _paths("crush crush-trio crush_trio")
"""The program's own directories in the user's state directory, such as its audit record."""

SOCKETS: Final = _paths(
    "/run/docker.sock /run/docker /run/containerd /run/podman /run/crio /run/dbus /run/screen"
    " /run/libvirt /var/lib/docker /tmp/.X11-unix"
)
"""Sockets of programs that do for their clients what a sandbox forbids."""

SOCKET_VARIABLES: Final = _paths(
    "SSH_AUTH_SOCK VSCODE_IPC_HOOK_CLI XAUTHORITY XDG_RUNTIME_DIR TMUX"
)
"""Variables that name such a socket, or a file or directory with the keys to one."""

GIT_FILES: Final = _paths("config config.worktree hooks commondir")
"""What decides which programs git runs, in a git directory."""

RESERVED: Final = frozenset({"hooks"})
"""Names that are protected also while they do not exist.

A sandbox reserves such a name by an empty directory while the command runs. Git ignores empty hooks; with
a directory instead of one of the other files it would fail.
"""

LINK_FILES: Final = _paths("config.worktree commondir gitdir")
"""The same in the directory of a linked work tree; the rest is in the common git directory."""

MOST_REPOSITORIES: Final = 200
"""Maximum submodules and linked work trees whose configuration is protected."""

MOST_ENTRIES: Final = 20_000
"""Maximum entries that are looked at to find them; beyond, the whole directory is protected."""


# ── Writable ────────────────────────────────────────────────────────────────────────────────────


def temporary_directories(environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Yield the directories for temporary files."""
    named = Path(environment.get("TMPDIR", ""))
    yield from filter(Path.is_dir, (Path("/tmp"), Path("/var/tmp")))
    if _narrow(named, home) and named.is_dir():
        yield named


def caches(environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Yield the caches of package managers that exist."""
    named = (Path(environment.get(name, "")) for name in CACHE_VARIABLES)
    for path in (*(home / each for each in CACHES), *named):
        if _narrow(path, home) and _exists(path):
            yield path


def _narrow(path: Path, home: Path) -> bool:
    """Whether a path from a variable is neither relative nor contains the home directory."""
    return path.is_absolute() and ".." not in path.parts and not home.is_relative_to(path)


# ── Git ─────────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class GitPaths:
    """The git directories of a work tree, and what is protected in them."""

    directories: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()


def git_paths(root: Path) -> GitPaths:
    """Return the git directories of the work tree at *root*; none if there is no repository.

    A repository that does not exist yet can be made, so that `git init` works.
    Of a linked work tree or a submodule they are somewhere else, where its `.git` file says. They are
    used only if they belong to this work tree: otherwise the file of a crafted project would decide
    what becomes writable.
    """
    entry = root / ".git"
    if entry.is_symlink() or not _exists(entry):
        return GitPaths(protected=(entry,))
    if entry.is_dir():
        return GitPaths(directories=(entry,), protected=tuple(_in_git_directory(entry)))
    linked = _linked(entry)
    if linked is None:
        return GitPaths(protected=(entry,))
    common = _common(linked)
    if common is None:
        return GitPaths(protected=(entry,))
    found = tuple(dict.fromkeys((common, linked)))
    return GitPaths(directories=found, protected=(entry, *_in_git_directory(common)))


def _linked(entry: Path) -> Path | None:
    """Return the git directory that the file *entry* names, if it belongs to its work tree."""
    directory = _named_in(entry, entry.parent, "gitdir:")
    if directory is None or not (directory / "HEAD").is_file():
        return None
    points_back = _named_in(directory / "gitdir", directory) == entry.resolve()
    # Not resolved: a link in a directory above, such as /tmp, must not decide what is writable.
    above = (each / ".git" / "modules" for each in entry.parent.resolve().parents)
    return directory if points_back or any(map(directory.is_relative_to, above)) else None


def _common(linked: Path) -> Path | None:
    """Return the common git directory of *linked*, which is itself if it names none.

    None if it names a directory that is not the repository around a linked work tree: a crafted
    `commondir` could name the home directory, which would then be writable.
    """
    if not _exists(linked / "commondir"):
        return linked
    common = _named_in(linked / "commondir", linked)
    around = linked.parent.parent if linked.parent.name == "worktrees" else None
    usual = all(_exists(linked.parent.parent / name) for name in ("HEAD", "objects", "refs"))
    return common if common is not None and common == around and usual else None


def _named_in(file: Path, base: Path, prefix: str = "") -> Path | None:
    """Return the resolved path that the first line of *file* contains after *prefix*."""
    try:
        # Not `open`: it would wait for ever at a named pipe that a command left there.
        line = os.fsdecode(read_regular(file, 4096)).partition("\n")[0].strip()
        if not line.startswith(prefix) or not line.removeprefix(prefix).strip():
            return None
        return (base / line.removeprefix(prefix).strip()).resolve()
    except (OSError, ValueError, RuntimeError):
        return None


def _in_git_directory(directory: Path) -> Iterator[Path]:
    """Yield what is protected in a git directory, its submodules and its linked work trees."""
    yield from (directory / name for name in GIT_FILES)
    for below, names in (("modules", GIT_FILES), ("worktrees", LINK_FILES)):
        try:
            for repository in islice(_repositories(directory / below), MOST_REPOSITORIES):
                yield from (repository / name for name in names)
        except OverflowError:  # made to be slow: what is not looked at could name programs to run
            yield directory / below


def _repositories(directory: Path) -> Iterator[Path]:
    """Yield the git directories below *directory*; the name of a submodule may have slashes.

    Raises `OverflowError` after `MOST_ENTRIES`: a command can fill such a directory, and this is
    read before the next command runs.
    """
    left = MOST_ENTRIES
    waiting = [directory]
    while waiting:
        parent = waiting.pop()
        try:
            with os.scandir(parent) as listed:
                entries = list(islice(listed, left + 1))
        except OSError:
            continue
        left -= len(entries)
        if left < 0:
            raise OverflowError
        inner = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        if any(each.name == "HEAD" and each.name not in inner for each in entries):
            yield parent
            inner = [name for name in inner if name == "modules"]
        waiting += (parent / name for name in inner)


# ── Protected and hidden ────────────────────────────────────────────────────────────────────────


def protected_paths(
    home: Path, project: Iterable[Path], data_dir: Path, git: GitPaths, trusted: Trusted = ()
) -> tuple[list[Path], list[Path]]:
    """Return what decides which programs run later: what is protected, and what is watched.

    *project* are the directories of the project, from the root of the work tree to the workspace.
    Names that do not exist are watched, except for the `RESERVED` ones and the configuration files of
    *trusted* directories.
    """
    protected, watched = list[Path](), list[Path]()
    directories = tuple(project)
    files = (each / name for each in directories for name in (*PROJECT_NAMES, DATA_NAME))
    start_up = (each / name for each in _homes(home) for name in START_UP)
    for path in (data_dir, *files, *git.protected, *start_up):
        counts = path.parent in directories and path.name in PROJECT_NAMES
        reserved = path.name in RESERVED or (counts and is_trusted(path.parent, trusted))
        (protected if reserved or _exists(path) else watched).append(path)
    return protected, watched


def reserved_paths(directory: Path) -> Iterator[Path]:
    """Yield the names that may be reserved while commands run in a workspace: placeholders may be left."""
    project = find_project(directory)
    yield from (each / name for each in project.directories for name in PROJECT_NAMES)
    yield from (each for each in git_paths(project.root).protected if each.name in RESERVED)


def hidden_paths(
    environment: Mapping[str, str], home: Path, uid: int, own: Iterable[Path]
) -> Iterator[Path]:
    """Yield what is private or leads out of the sandbox, and exists. *own* are our directories."""
    state = Path(environment.get("XDG_STATE_HOME", ""))
    states = [state] if state.is_absolute() else [each / ".local/state" for each in _homes(home)]
    named = (Path(environment.get(name, "").partition(",")[0]) for name in SOCKET_VARIABLES)
    user = (f"/run/user/{uid}", f"/tmp/tmux-{uid}", f"/tmp/emacs{uid}", f"/run/screen/S-{uid}")
    # The directory of the server's socket if the others have no room for it (`net.address`): a command
    # that put its own socket there would be sent the environment of the user's next command.
    sockets = (Path(each, f"crush-trio-{uid}") for each in ("/tmp", environment.get("TMPDIR", "")))
    candidates = (
        *(each / name for each in _homes(home) for name in PRIVATE),
        *own,
        *(each / name for each in states for name in OWN_STATE),
        *map(Path, (*SOCKETS, *user)),
        *named,
        *sockets,
    )
    for path in candidates:
        if _narrow(path, home) and _exists(path):
            yield path


def _homes(home: Path) -> tuple[Path, ...]:
    """Return *home* and the home directory of the account.

    They differ if HOME is not set, as in many services: the account's keys are private all the same.
    """
    account = account_home()
    return (home,) if account is None or account == home else (home, account)


def _exists(path: Path) -> bool:
    try:
        return os.path.lexists(path)
    except (OSError, ValueError):
        return False
