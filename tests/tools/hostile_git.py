"""Repositories that try to run a program when git reads them, as an archive could bring them along.

A trap is a repository, and a command that springs it: with plain git, the command creates the mark.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from attrs import frozen

IDENTITY = (
    "-c",
    "user.name=a",
    "-c",
    "user.email=a@example.org",
    "-c",
    "protocol.file.allow=always",
)
SIGNED = """tree {tree}
author a <a@example.org> 1700000000 +0000
committer a <a@example.org> 1700000000 +0000
gpgsig -----BEGIN PGP SIGNATURE-----
 x
 -----END PGP SIGNATURE-----

signed
"""


@frozen(kw_only=True)
class Ground:
    """A directory for one trap: the repository, the program that leaves the mark, the user's home."""

    root: Path

    @property
    def repository(self):
        return self.root / "workspace"

    @property
    def git_dir(self):
        return self.repository / ".git"

    @property
    def home(self):
        return self.root / "home"

    @property
    def mark(self):
        return self.root / "mark"

    @property
    def program(self):
        return self.root / "program"

    @property
    def transport(self):
        return self.root / "transport"

    @property
    def env(self):
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "GIT_PAGER": "cat"}

    def git(self, *words, directory=None):
        """Run git as the attacker, who makes the repository."""
        done = subprocess.run(
            ["git", *IDENTITY, *words],
            cwd=directory or self.repository,
            env=self.env | {"GIT_CONFIG_NOSYSTEM": "1"},
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def configure(self, text, name="config"):
        with (self.git_dir / name).open("a") as file:
            file.write(text)

    def spring(self, command, env=None):
        """Run a command as a shell of the user does, and return whether it left the mark."""
        subprocess.run(
            ["bash", "-c", command],
            cwd=self.repository,
            env=env or self.env,
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=20,
        )
        return self.unmark()

    def unmark(self):
        """Remove the mark, and return whether it was there."""
        left = self.mark.exists()
        self.mark.unlink(missing_ok=True)
        return left


def make_ground(root: Path) -> Ground:
    """Make a repository with one commit and one changed file."""
    ground = Ground(root=root)
    ground.repository.mkdir(parents=True)
    ground.home.mkdir()
    ground.program.write_text(f"#!/bin/sh\ntouch {ground.mark}\ncat\nexit 0\n")
    ground.program.chmod(0o755)
    ground.transport.write_text(f"#!/bin/sh\ntouch {ground.mark}\nexit 1\n")
    ground.transport.chmod(0o755)
    ground.git("init", "-q", "-b", "main")
    (ground.repository / "a.py").write_text("one\n")
    (ground.repository / "b.bin").write_text("one\n")
    ground.git("add", ".")
    ground.git("commit", "-qm", "first")
    (ground.repository / "a.py").write_text("two\n")
    return ground


# ── Traps ───────────────────────────────────────────────────────────────────────────────────────


@frozen
class Trap:
    """A way to make a repository dangerous, and commands that spring it."""

    name: str
    craft: Callable[[Ground], None]
    commands: tuple[str, ...]


def attributes(ground, line):
    (ground.repository / ".gitattributes").write_text(f"{line}\n")


def clean_filter(ground):
    attributes(ground, "*.py filter=x")
    ground.configure(f'[filter "x"]\n\tclean = {ground.program}\n')


def filter_process(ground):
    attributes(ground, "*.py filter=x")
    ground.configure(f'[filter "x"]\n\tprocess = {ground.program}\n')


def external_diff(ground):
    ground.configure(f"[diff]\n\texternal = {ground.program}\n")


def diff_command(ground):
    attributes(ground, "*.py diff=x")
    ground.configure(f'[diff "x"]\n\tcommand = {ground.program}\n')


def textconv(ground):
    (ground.git_dir / "info").mkdir(exist_ok=True)
    (ground.git_dir / "info" / "attributes").write_text("*.py diff=x\n")
    ground.configure(f'[diff "x"]\n\ttextconv = {ground.program}\n')


def attributes_file(ground):
    (ground.root / "attributes").write_text("*.py diff=x\n")
    ground.configure(f"[core]\n\tattributesFile = {ground.root}/attributes\n")
    ground.configure(f'[diff "x"]\n\ttextconv = {ground.program}\n')


def signature(ground):
    tree = ground.git("rev-parse", "HEAD^{tree}")
    commit = ground.root / "commit"
    commit.write_text(SIGNED.format(tree=tree))
    ground.git("reset", "-q", ground.git("hash-object", "-t", "commit", "-w", str(commit)))
    ground.configure(f"[gpg]\n\tprogram = {ground.program}\n")


def show_signature(ground):
    signature(ground)
    ground.configure("[log]\n\tshowSignature = true\n")


def named_format(ground):
    signature(ground)
    ground.configure("[pretty]\n\tx = format:%G?\n")


def promisor(url, extra=""):
    def craft(ground):
        blob = ground.git("rev-parse", "HEAD:a.py")
        (ground.git_dir / "objects" / blob[:2] / blob[2:]).unlink()
        ground.configure(
            "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = x\n"
            f'[remote "x"]\n\turl = {url.format(program=ground.transport)}\n\tpromisor = true\n'
            + extra.format(program=ground.transport)
        )

    return craft


def included(ground):
    (ground.git_dir / "more").write_text(f"[diff]\n\texternal = {ground.program}\n")
    ground.configure("[include]\n\tpath = more\n")


def included_if(ground):
    (ground.git_dir / "more").write_text(f"[diff]\n\texternal = {ground.program}\n")
    ground.configure('[includeIf "onbranch:main"]\n\tpath = more\n')


def worktree_config(ground):
    ground.configure("[extensions]\n\tworktreeConfig = true\n")
    ground.configure(f"[diff]\n\texternal = {ground.program}\n", "config.worktree")


def continued(ground):
    """The second line looks like a setting of `user`, and is a part of the first one's value."""
    ground.configure(f"[diff]\n\tcontext = 3 \\\n[user]\n\texternal = {ground.program}\n")
    text = (ground.git_dir / "config").read_text().replace("3 \\\n[user]", "3 # \\")
    (ground.git_dir / "config").write_text(text)


def same_line(ground):
    ground.configure(f"[diff] external = {ground.program}\n")


def dotted(ground):
    attributes(ground, "*.py diff=x")
    ground.configure(f"[diff.x]\n\tCommand = {ground.program}\n")


def git_file(ground):
    external_diff(ground)
    ground.git_dir.rename(ground.repository / "data")
    ground.git_dir.write_text("gitdir: data\n")


def git_link(ground):
    external_diff(ground)
    ground.git_dir.rename(ground.repository / "data")
    ground.git_dir.symlink_to("data")


def common_dir(ground):
    external_diff(ground)
    ground.git_dir.rename(ground.repository / "data")
    ground.git_dir.mkdir()
    (ground.git_dir / "HEAD").write_text("ref: refs/heads/main\n")
    (ground.git_dir / "commondir").write_text("../data\n")
    ground.git("read-tree", "HEAD")


def hook(ground):
    path = ground.git_dir / "hooks" / "post-index-change"
    path.parent.mkdir(exist_ok=True)
    path.write_text(ground.program.read_text())
    path.chmod(0o755)
    os.utime(ground.repository / "b.bin", (1_700_000_000, 1_700_000_000))


def hooks_path(ground):
    hook(ground)
    (ground.git_dir / "hooks").rename(ground.repository / "hooks")
    ground.configure("[core]\n\thooksPath = hooks\n")


def monitor(ground):
    ground.configure(f"[core]\n\tfsmonitor = {ground.program}\n")


def submodule(ground, ignore=None):
    inner = ground.root / "inner"
    inner.mkdir()
    ground.git("init", "-q", "-b", "main", directory=inner)
    (inner / "c.py").write_text("one\n")
    ground.git("add", ".", directory=inner)
    ground.git("commit", "-qm", "inner", directory=inner)
    ground.git("submodule", "add", "-q", str(inner), "sub")
    if ignore:
        ground.git("config", "-f", ".gitmodules", "submodule.sub.ignore", ignore)
    ground.git("add", ".")
    ground.git("commit", "-qm", "submodule")
    (ground.repository / "sub" / "c.py").write_text("two\n")
    (ground.repository / "sub" / ".gitattributes").write_text("*.py filter=x\n")
    with (ground.git_dir / "modules" / "sub" / "config").open("a") as config:
        config.write(f'[filter "x"]\n\tclean = {ground.program}\n')


def submodule_seen(ground):
    submodule(ground, "none")


def submodule_in_index(ground):
    submodule(ground, "none")
    (ground.repository / ".gitmodules").unlink()


def invalid_below(ground):
    """A `.git` that is no repository, so that git goes on to the one above."""
    external_diff(ground)
    (ground.repository / "below" / ".git").mkdir(parents=True)
    (ground.repository / "below" / ".git" / "config").write_text("[core]\n\tbare = false\n")


def external_of_the_user(ground):
    """A converter of the user, which the attributes of the repository choose."""
    attributes(ground, "*.py diff=exif")
    (ground.home / ".gitconfig").write_text(f'[diff "exif"]\n\ttextconv = {ground.program}\n')


def filter_of_the_user(ground):
    attributes(ground, "*.py filter=lfs")
    (ground.home / ".gitconfig").write_text(f'[filter "lfs"]\n\tclean = {ground.program}\n')


LAZY = ("git log -p", "git show HEAD:a.py", "git diff")

TRAPS = [
    Trap("clean filter", clean_filter, ("git status", "git diff", "git ls-files -m")),
    Trap("filter process", filter_process, ("git status", "git diff")),
    Trap("external diff", external_diff, ("git diff",)),
    Trap("diff command", diff_command, ("git diff",)),
    Trap("textconv", textconv, ("git diff", "git log -p", "git show HEAD", "git blame a.py")),
    Trap("attributes file", attributes_file, ("git diff",)),
    Trap("signature", signature, ("git log --format=%G?", "git log --pretty=format:%+GK")),
    Trap("show signature", show_signature, ("git log", "git show")),
    Trap("named format", named_format, ("git log --pretty=x",)),
    Trap("promisor ext", promisor("ext::{program}", "[protocol]\n\tallow = always\n"), LAZY),
    Trap(
        "promisor ssh",
        promisor("ssh://host/x", "[core]\n\tsshCommand = {program}\n"),
        LAZY,
    ),
    Trap("promisor upload pack", promisor("/", "\tuploadpack = {program}\n"), LAZY),
    Trap("include", included, ("git diff",)),
    Trap("include if", included_if, ("git diff",)),
    Trap("worktree configuration", worktree_config, ("git diff",)),
    Trap("comment that ends in a backslash", continued, ("git diff",)),
    Trap("setting beside its section", same_line, ("git diff",)),
    Trap("section with a dot", dotted, ("git diff",)),
    Trap("git file", git_file, ("git diff",)),
    Trap("git link", git_link, ("git diff",)),
    Trap("common directory", common_dir, ("git diff",)),
    Trap("hook", hook, ("git diff", "git describe --always --dirty")),
    Trap("hooks path", hooks_path, ("git diff",)),
    Trap("monitor", monitor, ("git status", "git diff")),
    Trap("submodule", submodule, ("git status", "git diff")),
    Trap("submodule that is looked into", submodule_seen, ("git status", "git diff")),
    Trap("submodule in the index", submodule_in_index, ("git status",)),
    Trap("invalid repository below", invalid_below, ("cd below && git diff",)),
    Trap("converter of the user", external_of_the_user, ("git diff", "git blame a.py")),
    Trap("filter of the user", filter_of_the_user, ("git status", "git diff")),
]
