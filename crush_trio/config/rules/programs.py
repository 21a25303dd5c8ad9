"""Programs by what a pattern may say about them: subcommands, interpreters, readers.

A pattern covers more than the command that was shown, so it must not name a program that runs other
programs: `sh`, `xargs` or `ssh` would cover everything. The lists are as long as they need to be and
never complete; see docs/permissions.md for what that means.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from attrs import frozen


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHELLS: Final = _words(
    "ash bash csh dash elvish fish ksh mksh nu oksh pwsh rbash sh tcsh xonsh yash zsh"
)

INTERPRETERS: Final = SHELLS | _words(
    "awk bc bpython bun cling clisp clojure crystal dc deno elixir emacs erl expect gawk gdb ghci"
    " groovy guile irb ipython java jrunscript js jshell julia lldb lua luajit m4 mawk mysql nawk nix"
    " nix-shell node nodejs ocaml octave osascript perl php psql pypy python qjs R racket raku rscript"
    " Rscript ruby runghc sbcl scala scheme sed sqlite sqlite3 swipl tclsh ts-node tsx uv uvx vim vi nvim"
    " ed ex wasmtime wish wolframscript bunx npx pnpx pipx poetry hatch pdm rye conda mamba bundle"
)
"""Programs that run code from their arguments, their input or a file."""

WRAPPERS: Final = _words(
    ". ansible at atf batch builtin bwrap busybox catchsegv ccache chroot chrt command coproc cpulimit"
    " crontab crush crush-trio daemonize dbus-run-session direnv distrobox distcc doas entr env eval exec fakeroot"
    " fd find firejail flatpak flock gdbserver git-shell ionice less lftp ltrace machinectl man mosh"
    " more mtrace nice nohup nsenter numactl parallel perf pkexec proot prlimit pv reptyr rlwrap"
    " rsh rsync runcon runuser sandbox-exec scp screen script scriptreplay setarch setpriv setsid sftp"
    " socat source ssh ssh-agent sshpass start-stop-daemon stdbuf strace stress su sudo systemd-run"
    " tar taskset tee-exec time timeout tini tmux torsocks toybox trap unbuffer unshare valgrind"
    " watch watchexec watchman wine xargs xvfb-run zip"
)
"""Programs that run the program in their arguments, or one that an option names."""

RESERVED: Final = _words(
    "[[ (( case for function in select until while if then else elif do done fi"
)
"""Words of the shell's syntax that the parser leaves where a program stands."""

BUILTINS: Final = _words(
    "alias bind complete declare enable export hash local mapfile popd pushd read readarray readonly"
    " set shopt typeset ulimit umask unalias unset"
)
"""Commands that change what the following commands of the line mean."""

NEVER: Final = INTERPRETERS | WRAPPERS | RESERVED | BUILTINS
"""Programs that no pattern covers. Only a command of exactly the same text is."""

AS_SHOWN: Final = _words(
    "blkdiscard chattr chgrp chmod chown dd fallocate hdparm kill killall ln mkfs mount"
    " passwd pkill rm rmdir setfacl shred skill truncate umount unlink usermod wipefs"
)
"""Programs whose operands decide how much harm they do: covered only with exactly the same text."""

READERS: Final = _words(
    ": [ basename cat cd cut dirname echo false grep head ls printf pwd tail test tr true wc"
)
"""Programs that can only print, and `cd`. They may stand beside covered commands in a line."""

TARGETS: Final = _words(
    "just make gmake ninja rake task tox nox invoke ant bazel bazelisk buck buck2 cap doit fab gradle"
    " gradlew grunt gulp lein lerna mage mvn mvnw nx pants rush sbt scons turbo waf"
    " alembic artisan aws az cdk cf dbt django-admin doctl dvc eb firebase fly flyctl gcloud gsutil heroku hg"
    " jj minikube netlify ng nomad oc prisma pulumi rails s3cmd serverless sls supabase svn tofu vagrant"
    " vault vercel wrangler"
    " busctl dbus-send gdbus loginctl nmcli openssl resolvectl"
)
"""Programs whose operands name something to do: covered with exactly the same words.

`mvn test` must not cover `mvn deploy`. Those with subcommands are here if `SUBCOMMANDS` does not know
their options.
"""


@frozen(kw_only=True)
class Subcommands:
    """A program with subcommands.

    `never` are those that run other programs or change what programs run; `deep` are those that have
    subcommands themselves. `options` run other programs or write anywhere, also abbreviated;
    `letters` are the same as short options. If there are none, an option with one dash is read like
    one with two.
    """

    never: frozenset[str] = frozenset()
    deep: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()
    letters: str = ""
    abbreviates: bool = True

    def depth(self, verb: str) -> int:
        """Return how many words, the program included, a pattern must name."""
        return 3 if verb in self.deep else 2

    def accepts(self, words: Sequence[str]) -> bool:
        """Whether none of the arguments is an option that runs another program."""
        return not any(self._refuses(word) for word in words)

    def _refuses(self, word: str) -> bool:
        if not word.startswith("-") or word in {"-", "--"}:
            return False
        name = word.partition("=")[0]
        if not name.startswith("--") and self.letters:
            return not set(self.letters).isdisjoint(name)
        whole = "--" + name.lstrip("-")
        return whole in self.options or (
            self.abbreviates and any(each.startswith(whole) for each in self.options)
        )


_NODE: Final = Subcommands(
    never=_words("exec x dlx create init config set explore edit publish link unlink token login"),
    deep=_words("run run-script workspace"),
    options=(
        *("--script-shell", "--shell", "--node-options", "--call", "--userconfig", "--git"),
        *("--globalconfig", "--global", "--location", "--registry", "--editor", "--viewer"),
    ),
    letters="gc",
)
_PIP: Final = Subcommands(
    never=_words("config debug"),
    options=(
        *(
            "--index-url",
            "--extra-index-url",
            "--find-links",
            "--trusted-host",
            "--target",
            "--user",
        ),
        *("--prefix", "--root", "--python", "--global-option", "--config-settings", "--proxy"),
        *("--break-system-packages", "--build-option", "--log", "--cert", "--report"),
    ),
    letters="iftC",
)
_CONTAINERS: Final = Subcommands(
    never=_words("run exec create build buildx compose context plugin save cp export login import"),
    deep=_words("container image network volume system service stack swarm"),
    options=("--host", "--config", "--context", "--tlscacert"),
    letters="Hc",
)

SUBCOMMANDS: Final[Mapping[str, Subcommands]] = {
    "git": Subcommands(
        never=_words(
            "bisect bugreport clone config credential daemon difftool fast-import filter-branch gui"
            " gitk hook http-backend init instaweb mergetool p4 remote remote-ext send-email shell"
            " submodule svn upload-archive upload-pack receive-pack web--browse worktree maintenance"
        ),
        deep=_words("stash notes bundle"),
        options=(
            *("--exec", "--upload-pack", "--receive-pack", "--config", "--template", "--output"),
            *(
                "--ext-diff",
                "--textconv",
                "--open-files-in-pager",
                "--extcmd",
                "--tool",
                "--editor",
            ),
            *(
                "--strategy",
                "--remote",
                "--gpg-sign",
                "--git-dir",
                "--work-tree",
                "--show-signature",
            ),
            *("--output-directory", "--upload-archive", "--server-option", "--pathspec-from-file"),
            "--unsafe-paths",
        ),
        letters="cxoOSC",
    ),
    "npm": _NODE,
    "pnpm": _NODE,
    "yarn": _NODE,
    "pip": _PIP,
    "cargo": Subcommands(
        never=_words("install login publish owner yank new init"),
        options=("--config", "--manifest-path", "--target-dir", "--root", "--registry", "--index"),
        letters="ZC",
    ),
    "go": Subcommands(
        never=_words("generate tool env"),
        deep=_words("mod work"),
        options=(
            *("--exec", "--toolexec", "--vettool", "--overlay", "--modfile", "--C", "--o"),
            *("--ldflags", "--gcflags", "--asmflags", "--gccgoflags", "--compiler", "--pkgdir"),
        ),
        abbreviates=False,
    ),
    "docker": _CONTAINERS,
    "podman": _CONTAINERS,
    "kubectl": Subcommands(
        never=_words("exec run debug cp edit proxy attach config plugin port-forward"),
        options=("--kubeconfig", "--server", "--token", "--as", "--context", "--cluster"),
        letters="s",
    ),
    "gh": Subcommands(
        never=_words("alias api auth config extension codespace ssh-key gpg-key secret"),
        deep=_words("pr issue repo release run workflow gist label cache project"),
        options=("--hostname",),
    ),
    "helm": Subcommands(
        never=_words("plugin registry env"),
        deep=_words("repo dependency get show search"),
        options=("--post-renderer", "--kubeconfig", "--kube-apiserver", "--kube-token"),
    ),
    "terraform": Subcommands(
        never=_words("console init login"), deep=_words("state workspace"), options=("--chdir",)
    ),
    "dotnet": Subcommands(never=_words("exec tool nuget new script"), deep=_words("sln")),
    "composer": Subcommands(
        never=_words("exec config global run-script create-project"),
        options=("--working-dir",),
        letters="d",
    ),
    "mix": Subcommands(never=_words("run escript archive local do eval")),
    "swift": Subcommands(never=_words("repl"), deep=_words("package")),
    "brew": Subcommands(never=_words("sh ruby tap edit services bundle"), options=("--cask",)),
    "rustup": Subcommands(never=_words("run default override toolchain")),
    "flutter": Subcommands(never=_words("config")),
    "dart": Subcommands(never=_words("run")),
    "pre-commit": Subcommands(never=_words("try-repo install"), options=("--config",), letters="c"),
}
"""The programs with subcommands. A pattern for one of them names the subcommand."""

FLAGS: Final[Mapping[str, str]] = {
    "touch": "acm",
    "mkdir": "pv",
    "cp": "afiLnPpRruvx",
    "mv": "finuv",
    "pytest": "lqsvx",
    "ruff": "q",
    "mypy": "v",
    "black": "qv",
    "prettier": "clw",
    "eslint": "",
    "gofmt": "dlsw",
    "rustfmt": "qv",
    "sort": "bdfghMnrRsuVz",
    "tsc": "pw",
    "gcc": "cgvw",
    "cc": "cgvw",
    "unzip": "ojlnqtuv",
    "gzip": "dfkqrtv",
    "gunzip": "fkqrtv",
}
"""Letters of short options that take no value. A word after any other option may be its value."""

_VERSION: Final = re.compile(r"-?\d[\d.]*$")


def program_name(word: str) -> str:
    """Return the name of a program, without its directory and its version: `python3.12` is `python`."""
    name = PurePosixPath(word).name
    return _VERSION.sub("", name) or name


_COUNTS: Final = re.compile(r"%[^A-Za-z%]*[hjlLqtz]*n")
"""The format with which `printf` stores a number in a variable."""


def sets_variable(name: str, words: Sequence[str]) -> bool:
    """Whether a command may set a variable, or evaluate the subscript of one.

    `printf -v PATH bin` changes what the next command runs, and so does `printf %n PATH`. The shell
    runs the substitution in `test -v 'a[$(id)]'`, although it is quoted.
    """
    match name:
        case "printf":
            return any(word.startswith("-v") or _COUNTS.search(word) for word in words)
        case "test" | "[":
            return any(word in {"-v", "-R"} for word in words)
    return False
