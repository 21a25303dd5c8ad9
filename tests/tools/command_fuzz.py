"""Random command lines for the judge, and a tracer that says what the read-only ones of them did.

The lines are made from the judge's own tables, with every option in several spellings, from the example
tables of the suite, and from words that are dangerous somewhere. They run in one shell under `strace`, in
a workspace full of traps: hooks, programs in the user's git configuration and in the environment, a PATH
that begins inside the workspace, links that lead out.
"""

import hashlib
import os
import random
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from crush_trio.tools.shell.judge import ReadOnly, judge
from crush_trio.tools.shell.read_only import READ_ONLY_PROGRAMS
from crush_trio.tools.shell.read_only_git import FIND_TESTS, FIND_VALUED, READ_ONLY_GIT
from crush_trio.tools.shell.unasked import unasked_env
from tests.tools.command_tables import ASKS, INERT
from tests.tools.hostile_git import hook, make_ground, monitor, signature

# ── Lines ───────────────────────────────────────────────────────────────────────────────────────


def _words(text: str) -> list[str]:
    return text.split()


OPERANDS = _words(
    "a.py b.bin src src/c.py sub . ./ ../neighbour/secret out/secret links/escape out *.py src/* "
    ".* - -- HEAD HEAD~1 HEAD:a.py main..dev main dev v1 stash@{0} :/ :(top)a.py :!a.py new v9 F "
    "src/F x"
)
VALUES = _words(
    "3 -3 1,2:a.py 1,2 80 x F a.py yesterday iso %h %G? %+GK %B %(signature) %(refname) signature "
    "-o --output=F --list -D -l -p -n --all ../neighbour/secret out/secret recurse HEAD *.py path "
    ": -rn +1 /x"
)
DANGEROUS = _words(
    "--output=F --output F -o -oF -O -Ox --ext-diff --textconv --show-signature --no-index "
    "--exec=program --pre=program --pre --compress-program=program -T --files0-from=F --dirty "
    "--broken --remerge-diff --open-files-in-pager --contents=F -D -d -m -M -c --edit --delete "
    "--set=x -s -C --compile -f -F --fromfile -exec -delete -fprint -fls -ok --recurse-submodules "
    "--submodule=diff --ignore-submodules=none --stdin --filters --parseopt -z -L -R -H --follow "
    "--hostname-bin=program --paginate -p push pop drop add expire --global --unset -x -e -i"
)
LIKELY = ("tree", "find", "sort", "rg", "uniq", "file", "date", "diff", "grep", "tree", "find")
PROGRAMS = (*sorted(READ_ONLY_PROGRAMS), *LIKELY, *("git",) * 120, "echo", "command")
EXAMPLES = tuple(line for line in (*INERT, *(line for part in ASKS.values() for line in part)))


def command_lines(seed: int) -> Iterator[str]:
    """Yield random command lines; the same ones for the same seed."""
    rng = random.Random(seed)
    while True:
        if rng.random() < 0.3:
            words = _example(rng)
        else:
            program = rng.choice(PROGRAMS)
            words = [program, *_arguments(rng, program)]
        for _ in range(rng.choice((0, 0, 1, 2))):
            _mutate(rng, words)
        line = " ".join(_spelled(rng, word) for word in words)
        if rng.random() < 0.15:
            line += rng.choice((" | head -5", " && pwd", "; ls", " 2>/dev/null", " || echo no"))
        yield line


def _example(rng: random.Random) -> list[str]:
    try:
        return shlex.split(rng.choice(EXAMPLES)) or ["ls"]
    except ValueError:
        return ["ls"]


def _arguments(rng: random.Random, program: str) -> Iterator[str]:
    if program == "git":
        name = rng.choice(sorted(READ_ONLY_GIT))
        rule = READ_ONLY_GIT[name]
        yield name
        if rule.verbs and rng.random() < 0.9:
            yield rng.choice(sorted(rule.verbs))
        known = [(each, "flag") for each in sorted(rule.flags)]
        known += [(each, "attached") for each in sorted(rule.attached)]
        known += [(each, "valued") for each in sorted(rule.valued | rule.last)]
    elif program == "find":
        yield from rng.choices((".", "src", "a.py"), k=rng.randrange(2))
        known = [(each, "flag") for each in sorted(FIND_TESTS)]
        known += [(each, "next") for each in sorted(FIND_VALUED)]
    else:
        known = _known_options(program)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 4))):
        yield from _option(rng, known)
    yield from rng.choices(OPERANDS, k=rng.choice((0, 1, 1, 2)))


def _known_options(program: str) -> list[tuple[str, str]]:
    rule = READ_ONLY_PROGRAMS.get(program)
    if rule is None:
        return [("-v", "flag"), ("-e", "flag")]
    known = [(f"-{letter}", "flag") for letter in rule.flags if (program, letter) != ("tail", "f")]
    known += [(f"-{letter}", "valued") for letter in rule.valued]
    known += [(f"-{letter}", "attached") for letter in rule.attached]
    known += [(each, "attached") for each in sorted(rule.words)]
    return known + [(each, "valued") for each in sorted(rule.named)]


def _option(rng: random.Random, known: list[tuple[str, str]]) -> Iterator[str]:
    if not known or rng.random() < 0.06:
        yield rng.choice(DANGEROUS)
        return
    name, kind = rng.choice(known)
    equals = "=" if name.startswith("--") else ""
    value = rng.choice(VALUES)
    match kind:
        case "flag":
            yield name
        case "attached":
            yield name if rng.random() < 0.6 else f"{name}{equals}{value}"
        case "valued" if rng.random() < 0.4:
            yield f"{name}{equals}{value}"
        case _:
            yield from (name, value)


def _mutate(rng: random.Random, words: list[str]) -> None:
    """Change one word but the first: remove, insert, swap, shorten, or join with the next."""
    if len(words) < 2:
        words.append(rng.choice(DANGEROUS))
        return
    at = rng.randrange(1, len(words))
    match rng.randrange(6):
        case 0:
            del words[at]
        case 1:
            words.insert(at, rng.choice((*DANGEROUS, *VALUES, *OPERANDS)))
        case 2:
            words[at] = rng.choice((*DANGEROUS, *VALUES, *OPERANDS))
        case 3 if words[at].startswith("--"):
            words[at] = words[at][: rng.randrange(2, len(words[at]) + 1)]
        case 4 if at + 1 < len(words):
            words[at : at + 2] = [words[at] + words[at + 1].lstrip("-")]
        case _:
            rng.shuffle(words[1:])


def _spelled(rng: random.Random, word: str) -> str:
    """Return a word as it is, or quoted; patterns mostly as they are."""
    if re.fullmatch(r"[\w./*?:=,+%@~-]+", word) and rng.random() < 0.9:
        return word
    return shlex.quote(word)


# ── The workspace ───────────────────────────────────────────────────────────────────────────────

USER_SETTINGS = """[core]
	pager = {program}
	fsmonitor = {program}
	attributesFile = {attributes}
[diff]
	external = {program}
	submodule = diff
[diff "x"]
	textconv = {program}
	command = {program}
[filter "x"]
	clean = {program}
	required = true
[gpg]
	program = {program}
[log]
	showSignature = true
[format]
	pretty = %G?
[status]
	submoduleSummary = true
"""


@frozen(kw_only=True)
class FuzzPlace:
    """The workspace in which lines are judged and run, and its hostile environment."""

    root: Path
    workspace: Path
    env: dict[str, str]


def make_place(root: Path) -> FuzzPlace:
    """Make a workspace full of traps that must not spring, below *root*."""
    ground = make_ground(root)
    top = ground.repository
    for name in ("src", "links", "bin"):
        (top / name).mkdir()
    (root / "neighbour").mkdir()
    (root / "neighbour" / "secret").write_text("secret\n")
    (top / "src" / "c.py").write_text("def x():\n    return 3\n")
    (top / "links" / "escape").symlink_to(root / "neighbour" / "secret")
    (top / "out").symlink_to(root / "neighbour")
    for name in ("ls", "cat", "git", "less", "program"):
        (top / "bin" / name).write_text(ground.program.read_text())
        (top / "bin" / name).chmod(0o755)
    (top / ".gitattributes").write_text("*.py diff=x filter=x\n")
    ground.git("add", ".")
    ground.git("commit", "-qm", "second")
    ground.git("branch", "dev")
    ground.git("tag", "-a", "v1", "-m", "v1")
    (top / "a.py").write_text("three\n")
    ground.git("stash", "-q")
    signature(ground)
    ground.git("config", "--unset", "gpg.program")
    hook(ground)
    monitor(ground)
    (top / "a.py").write_text("four\n")
    (ground.home / ".gitconfig").write_text(
        USER_SETTINGS.format(program=ground.program, attributes=root / "attributes")
    )
    (root / "attributes").write_text("* diff=x filter=x\n")
    (root / "ripgreprc").write_text(f"--pre={ground.program}\n")
    hostile = {
        **ground.env,
        "PATH": f"bin:{top}/bin:{ground.env['PATH']}",
        "GIT_EXTERNAL_DIFF": str(ground.program),
        "GIT_PAGER": str(ground.program),
        "GIT_TRACE": str(root / "trace"),
        "GREP_OPTIONS": "-f a.py",
        "POSIXLY_CORRECT": "1",
        "RIPGREP_CONFIG_PATH": str(root / "ripgreprc"),
    }
    return FuzzPlace(root=root, workspace=top, env=unasked_env(hostile, top))


ENDLESS = re.compile(r"\btail\b.*-\w*f")


def read_only_lines(place: FuzzPlace, seed: int, count: int) -> list[str]:
    """Return *count* different lines that the judge calls read-only."""
    found = dict[str, None]()
    for line in command_lines(seed):
        if line not in found and not ENDLESS.search(line) and _is_read_only(line, place):
            found[line] = None
            if len(found) == count:
                break
    return list(found)


def _is_read_only(line: str, place: FuzzPlace) -> bool:
    top = place.workspace
    return judge(line, workspace=top, working_dir=top, sandboxed=True) == ReadOnly()


def snapshot(root: Path) -> dict[str, tuple[object, ...]]:
    """Return the name, kind, times and content of everything below a directory."""
    found = {}
    for folder, folders, files in os.walk(root):
        for path in (Path(folder, name) for name in (*folders, *files)):
            state = path.lstat()
            data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
            found[str(path)] = (state.st_mode, state.st_mtime_ns, state.st_size, digest)
    return found


# ── The tracer ──────────────────────────────────────────────────────────────────────────────────

WRITING = _words(
    "creat rename renameat renameat2 unlink unlinkat mkdir mkdirat rmdir link linkat symlink "
    "symlinkat truncate ftruncate chmod fchmod fchmodat chown lchown fchown fchownat utime utimes "
    "utimensat futimesat mknod mknodat setxattr lsetxattr fsetxattr removexattr mount umount2 "
    "bind sendto settimeofday clock_settime sethostname"
)
OPENING = ("open", "openat", "openat2")
RUNNING = ("execve", "execveat")
STRACE = ("strace", "-f", "--seccomp-bpf", "-qq", "-s", "400")
MISSING = "(No such file or directory)"
MARKER = "/no-such-directory/line-"

EXECUTABLE = frozenset(READ_ONLY_PROGRAMS) | {
    *("bash", "sh", "git", "find", "tree", "which.debianutils", "env")
}
"""The programs that may run: those of the lists, and the shell that scripts such as `which` have."""

_CALL = re.compile(r"\d+ +(\w+)\((.*)")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def run_lines(place: FuzzPlace, lines: list[str], file: Path, tracer: tuple[str, ...] = ()) -> None:
    """Run lines one after the other in a shell, from a script *file*: they are too long for a word."""
    script = "\n".join(
        f"cd {MARKER}{at} 2>/dev/null\n(\n{line}\n) </dev/null >/dev/null 2>&1"
        for at, line in enumerate(lines)
    )
    file.write_text(script)
    subprocess.run(
        [*tracer, "bash", str(file)],
        cwd=place.workspace,
        env=place.env,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=600,
    )


def trace(place: FuzzPlace, lines: list[str], log: Path) -> list[str]:
    """Run lines under the tracer; return what they did beyond reading the workspace."""
    calls = ",".join(f"?{name}" for name in (*WRITING, *OPENING, *RUNNING, "connect", "chdir"))
    tracer = (*STRACE, "-o", str(log), "-e", f"trace={calls}")
    run_lines(place, lines, log.with_suffix(".sh"), tracer)
    return list(_violations(place, lines, log.read_text("utf-8", "replace")))


def _violations(place: FuzzPlace, lines: list[str], log: str) -> Iterator[str]:
    line, seen = "", set[int]()  # a shell calls chdir twice for a directory that does not exist
    for entry in log.splitlines():
        call = _CALL.match(entry)
        if call is None:  # a signal, an exit, the end of a call that was already seen
            continue
        name, rest = call.groups()
        if name == "chdir" and MARKER in rest:
            at = int(rest.split(MARKER)[1].split('"')[0])
            line = lines[at]
            seen.add(at)
        elif not _is_allowed(place, name, rest):
            yield f"{line!r}: {name}({rest}"
    if len(seen) != len(lines):
        yield f"only {len(seen)} of {len(lines)} lines were run"


def _is_allowed(place: FuzzPlace, name: str, rest: str) -> bool:
    path = next(iter(_STRING.findall(rest)), "")
    if name in OPENING:
        writes = any(flag in rest for flag in ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC"))
        outside = path.startswith(str(place.root / "neighbour")) or path.endswith("/secret")
        missing = not writes and rest.endswith(MISSING)
        return missing or (not writes and not outside) or path in {"/dev/null", "/dev/tty"}
    if name in RUNNING:
        own = not path.startswith("/") or path.startswith(str(place.root))
        return rest.endswith(MISSING) or (not own and Path(path).name in EXECUTABLE)
    if name in {"connect", "bind", "sendto"}:  # the name service, and the kernel's own tables
        return "AF_UNIX" in rest or "AF_NETLINK" in rest
    return name == "chdir"
