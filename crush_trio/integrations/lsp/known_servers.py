"""Built-in table of common language servers, language names of files, `ServerSpec`, and finding programs.

The servers here can be started without being configured. Each has its programs, the preferred one first,
its file types, and the files that mark a project of its kind. Programs that run other programs, such as
`npx` or `node`, are not listed: the project would decide what they start.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePath
from typing import Final

from attrs import evolve, field, frozen

from crush_trio.wire.config import LspServerConfig


@frozen(kw_only=True)
class KnownServer:
    """A common server."""

    programs: tuple[tuple[str, ...], ...]
    """Argument vectors; the first one whose program is installed is used."""
    filetypes: tuple[str, ...]
    root_markers: tuple[str, ...]

    def config(self, argv: tuple[str, ...]) -> LspServerConfig:
        """Return the configuration that starts it by *argv*."""
        return self.completed(LspServerConfig(command=argv[0], args=argv[1:]))

    def completed(self, config: LspServerConfig) -> LspServerConfig:
        """Return *config* with defaults for everything that it leaves out."""
        command, *args = self.programs[-1]
        mine = config.command or command
        return evolve(
            config,
            command=mine,
            args=config.args or (() if config.command else tuple(args)),
            filetypes=config.filetypes or self.filetypes,
            root_markers=config.root_markers or self.root_markers,
        )


KNOWN: Final[Mapping[str, KnownServer]] = {
    "clangd": KnownServer(
        programs=(("clangd",),),
        filetypes=("c", "h", "cc", "cpp", "cxx", "hh", "hpp", "hxx"),
        root_markers=("compile_commands.json", "compile_flags.txt", ".clangd"),
    ),
    "gopls": KnownServer(
        programs=(("gopls",),), filetypes=("go",), root_markers=("go.mod", "go.work")
    ),
    "pyright": KnownServer(
        programs=(("basedpyright-langserver", "--stdio"), ("pyright-langserver", "--stdio")),
        filetypes=("py", "pyi"),
        root_markers=(
            *("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt"),
            *("Pipfile", "pyrightconfig.json"),
        ),
    ),
    "rust-analyzer": KnownServer(
        programs=(("rust-analyzer",),), filetypes=("rs",), root_markers=("Cargo.toml",)
    ),
    "typescript-language-server": KnownServer(
        programs=(("typescript-language-server", "--stdio"),),
        filetypes=("ts", "tsx", "mts", "cts", "js", "jsx", "mjs", "cjs"),
        root_markers=("package.json", "tsconfig.json", "jsconfig.json"),
    ),
}
"""The servers that start without configuration in trusted projects, by name."""

LANGUAGES: Final[Mapping[str, str]] = {
    "bash": "shellscript",
    "bat": "bat",
    "c": "c",
    "cc": "cpp",
    "cjs": "javascript",
    "clj": "clojure",
    "cpp": "cpp",
    "cs": "csharp",
    "cts": "typescript",
    "cxx": "cpp",
    "erl": "erlang",
    "ex": "elixir",
    "exs": "elixir",
    "fs": "fsharp",
    "h": "c",
    "hh": "cpp",
    "hpp": "cpp",
    "hs": "haskell",
    "hxx": "cpp",
    "js": "javascript",
    "jsx": "javascriptreact",
    "kt": "kotlin",
    "kts": "kotlin",
    "md": "markdown",
    "mjs": "javascript",
    "ml": "ocaml",
    "mts": "typescript",
    "pl": "perl",
    "ps1": "powershell",
    "py": "python",
    "pyi": "python",
    "rb": "ruby",
    "rs": "rust",
    "sh": "shellscript",
    "tex": "latex",
    "tf": "terraform",
    "ts": "typescript",
    "tsx": "typescriptreact",
    "yml": "yaml",
}
"""Language names by file ending, where the two differ."""

LANGUAGES_BY_NAME: Final[Mapping[str, str]] = {"Dockerfile": "dockerfile", "Makefile": "makefile"}


def language_of(path: PurePath) -> str:
    """Return the language id of a file."""
    suffix = path.suffix.removeprefix(".").lower()
    return LANGUAGES_BY_NAME.get(path.name) or LANGUAGES.get(suffix) or suffix or "plaintext"


def handles(filetypes: Iterable[str], path: PurePath) -> bool:
    """Whether *filetypes*, endings or language names, include a file. An empty list includes all."""
    wanted = [each.lower() for each in filetypes]
    name, language = path.name.lower(), language_of(path)
    return not wanted or any(
        each == language or name.endswith(f".{each.removeprefix('.')}") for each in wanted
    )


@frozen(kw_only=True)
class ServerSpec:
    """The configuration of a server at one revision. Equal specs mean the same server."""

    name: str
    config: LspServerConfig = field(repr=False)
    automatic: bool = False
    """Whether it was found on this machine and is not configured."""
    refused: str = ""
    """Why it must not be started; empty if it may be."""

    def handles(self, path: PurePath) -> bool:
        """Whether it handles a file."""
        return handles(self.config.filetypes, path)


# ── Files: the functions below read the disk and must run in a thread ───────────────────────────

COUNT_SECONDS: Final = 0.5
"""Maximum time to count the files of a project."""


def program_of(
    config: LspServerConfig, env: Mapping[str, str], directory: Path, *, trusted: bool
) -> str:
    """Return the path of a server's program; raises `ServerUnavailable` if it is not found.

    It is searched only in the absolute directories of PATH. A path relative to the project names a file
    that came with the project, and is used only if the user trusts the project.
    """
    from crush_trio.integrations.lsp.session import ServerUnavailable
    from crush_trio.tools.search.ripgrep import find_program

    command = config.command
    if not command:
        raise ServerUnavailable("it is configured without a command")
    if "/" not in command:
        found = find_program(command, env)
    elif Path(command).is_absolute():
        found = command
    elif trusted:
        found = str(directory / command)
    else:
        raise ServerUnavailable(f"{command} came with the project, which is not trusted")
    if found is None or not Path(found).is_file():
        raise ServerUnavailable(f"{command} was not found")
    return found


def has_root(directory: Path, markers: Iterable[str]) -> bool:
    """Whether a directory contains one of *markers*; True if there are no markers."""
    wanted = tuple(markers)
    if not wanted:
        return True
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError:
        return False
    return any(
        (directory / marker).exists()
        if "/" in marker
        else any(fnmatchcase(name, marker) for name in names)
        for marker in wanted
    )


def find_known_servers(directory: Path, env: Mapping[str, str]) -> dict[str, LspServerConfig]:
    """Return the known servers that are installed and whose project markers are in a directory."""
    from crush_trio.tools.search.ripgrep import find_program

    found: dict[str, LspServerConfig] = {}
    for name, known in KNOWN.items():
        if has_root(directory, known.root_markers):
            argvs = (argv for argv in known.programs if find_program(argv[0], env) is not None)
            argv = next(argvs, None)
            if argv is not None:
                found[name] = known.config(argv)
    return found


def count_files(directory: Path, spec: ServerSpec, most: int) -> int:
    """Return how many files below a directory a server handles, at most *most*.

    A project that cannot be listed in COUNT_SECONDS counts as one with *most* files.
    """
    from crush_trio.tools.search.walk import DirectoryWalk, IgnoreFilter

    walk = DirectoryWalk(IgnoreFilter(directory, directory, hidden=True), seconds=COUNT_SECONDS)
    handled = (each for each in walk.entries() if each.is_file and spec.handles(Path(each.path)))
    count = sum(1 for _ in islice(handled, most))
    return most if walk.cut_short else count
