"""Command lines: which patterns describe one, and which patterns cover one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.agent.asks.commands import CommandLine, is_covered, is_touched, patterns_of
from crush_trio.agent.asks.path_policy import PathPolicy
from crush_trio.config.rules.patterns import ExactLine, Invocation, parse_command
from crush_trio.config.rules.programs import AS_SHOWN, NEVER, READERS, SUBCOMMANDS, program_name
from crush_trio.tools.shell.script_parser import read_script

ROOT = Path("/srv/project")
PATHS = PathPolicy(workspace=ROOT, private=(ROOT / "keys",))


def line(text, directory=ROOT):
    return CommandLine.parse(text, directory)


def shown(text):
    """Return what a grant for a line covers, as people read it."""
    return [str(each) for each in patterns_of(line(text), PATHS)]


def covers(text, later):
    return is_covered(line(later), patterns_of(line(text), PATHS), PATHS)


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("touch one", ["touch <paths>"]),
        ("mkdir -p a/b", ["mkdir -p <paths>"]),
        ("git commit -m 'feat: one'", ["git commit *"]),
        ("npm test", ["npm test *"]),
        ("npm run test:unit", ["npm run test:unit *"]),
        ("git stash", ["git stash"]),
        ("make test", ["make test"]),
        ("cd web && npm test 2>&1 | tail -5", ["npm test *"]),
        ("git add a b; git commit -m x", ["git add *", "git commit *"]),
        ("(cd web && touch a)", ["touch <paths>"]),
        ("echo hello > notes.txt", ["> *"]),
        ("cat > a.txt <<'EOF'\nhello $HOME\nEOF\n", ["> *"]),
        ("pytest -k name tests", ["pytest -k name <paths>"]),
        ("./build.sh all", ["./build.sh <paths>"]),
    ],
)
def test_a_grant_covers_the_commands_that_were_shown(text, patterns):
    assert shown(text) == patterns
    assert covers(text, text)
    assert [str(parse_command(each)) for each in patterns] == patterns


@pytest.mark.parametrize(
    "text",
    [
        *("sh -c 'touch one'", "bash run.sh", "python -c 'print(1)'", "python3.12 x.py"),
        *("node -e '1'", "env touch one", "xargs touch", "sudo touch one", "eval touch one"),
        *("find . -exec touch {} +", "ssh host ls", "timeout 5 touch one", "/usr/bin/env touch x"),
        *("rm -rf build", "chmod +x a", "ln -s a b", "kill 1"),
        *("touch $HOME", "touch $(echo one)", "touch `echo one`", "touch {a,b}", "touch *.py"),
        *("A=1 touch one", "touch one &> /tmp/x", "touch /etc/x", "touch ../x", "touch a/../../x"),
        *("git -c core.pager=x log", "git config user.name x", "git rebase --exec make main"),
        *("git rebase --exe make main", "git push https://host/x main", "git push ext::sh main"),
        *("git archive --output=x HEAD", "docker run x", "npm exec x", "go generate ./..."),
        *("cp @list b", "cd /etc && touch x", "cd .. && touch x", "touch keys/one"),
        *("for x in a b; do touch x; done", "git", "touch 'unclosed", "gcc -B/tmp/x a.c"),
        *(
            "npm test --script-shell=./x",
            "touch a >& b",
            "alias touch=rm",
            "export PATH=.; touch a",
        ),
    ],
)
def test_what_runs_other_programs_or_leads_out_is_covered_with_the_same_text_only(text):
    assert shown(text) == [f"= {text}"]
    assert covers(text, text)
    assert not covers(text, f"{text} ") or text.strip() == f"{text} ".strip()
    assert not covers(text, f"{text} more")
    assert not covers("touch one", text)


@pytest.mark.parametrize(
    ("text", "later"),
    [
        ("touch one", "touch two"),
        ("touch one", "touch two three/four && touch five"),
        ("touch one", "cd sub && touch two"),
        ("touch one", "touch two 2>/dev/null | cat"),
        ("git commit -m one", "git commit --amend -m 'two: a fix'"),
        ("npm test", "npm test -- --watch src/a.test.js"),
        ("npm test", "npm test 2>&1 | grep -c ok | head -3"),
        ("go test ./...", "go test -v ./pkg"),
        ("cp -ra a b", "cp -r c d"),
        ("echo a > x", "echo b >> y"),
        ("pytest -x -q tests", "pytest -q tests/a.py::test_one"),
    ],
)
def test_a_grant_covers_the_same_command_with_other_paths(text, later):
    assert covers(text, later)


@pytest.mark.parametrize(
    ("text", "later"),
    [
        ("touch one", "rm -rf ."),
        ("touch one", "touch two && rm -rf ."),
        ("touch one", "touch two; rm x"),
        ("touch one", "touch two | tee x"),
        ("touch one", "touch two & rm x"),
        ("touch one", "touch two\nrm x"),
        ("touch one", "(rm x)"),
        ("touch one", "if true; then rm x; fi"),
        ("touch one", "touch() { rm x; }; touch a"),
        ("touch one", "touch -r a b"),
        ("touch one", "touch /etc/x"),
        ("touch one", "touch .git/config"),
        ("touch one", "touch a/.bashrc"),
        ("touch one", "touch two > three"),
        ("touch one", "./touch two"),
        ("touch one", "touch $(rm x)"),
        ("touch one", "touch <(rm x)"),
        ("touch one", "touch a <<EOF\n$(rm x)\nEOF"),
        ("touch one", "cat keys/token"),
        ("touch one", "cat /etc/passwd"),
        ("touch one", "LD_PRELOAD=x touch two"),
        ("touch one", "! touch /etc/two"),
        ("touch one", "touch one; echo x > /etc/passwd"),
        ("touch one", "touch two; test -v 'a[$(rm x)]'"),
        ("touch one", "touch two; test ! -R 'a[$(rm x)]'"),
        ("touch one", "printf -v PATH bin; touch two"),
        ("touch one", "printf -vPATH bin; touch two"),
        ("touch one", "printf 'a%-3ln' PATH; touch two"),
        ("touch one", "touch crush.json"),
        ("echo a > b", "echo a > sub/.crush.json"),
        ("git commit -m x", "git push"),
        ("git commit -m x", "git -C sub commit"),
        ("git commit -m x", "git commit --template=/etc/passwd"),
        ("git log", "git log --output=x"),
        ("git log", "git log --outp=x"),
        ("git fetch", "git fetch --upload-pack=x"),
        ("git push", "git push other:path main"),
        ("go test ./...", "go test -exec ./x ./..."),
        ("npm run build", "npm run deploy"),
        ("npm test", "npm install"),
        ("make test", "make test deploy"),
        ("mvn test", "mvn deploy"),
        ("crush-trio doctor", "crush-trio trust"),
        ("busctl list", "busctl call x y z"),
        ("openssl version", "openssl enc"),
        ("./gradlew build", "./gradlew publish"),
        ("./gradlew build", "cd sub && ./gradlew build"),
        ("./build.sh all", "cd sub && ./build.sh all"),
        ("./build.sh all", "cd sub; cd x; tools/../build.sh all"),
        ("git apply a.patch", "git apply --unsafe-paths b.patch"),
        ("git apply a.patch", "git apply --unsafe b.patch"),
        ("aws s3 ls", "aws s3 rb"),
        ("svn status", "svn commit"),
        ("make test", "make test SHELL=./x"),
        ("pytest -k one tests", "pytest -k two tests"),
        ("pytest tests", "pytest -p evil tests"),
        ("pip install -r requirements.txt", "pip install --index-url=http://x y"),
        ("cp a b", "cp a /tmp/b"),
        ("cp a b", "cp --target-directory=/tmp a"),
        ("cp a b", "cp -t/tmp a"),
    ],
)
def test_a_grant_does_not_cover_another_command_or_other_places(text, later):
    assert not covers(text, later)


def test_a_link_that_leads_out_of_the_workspace_is_not_covered(tmp_path):
    workspace = tmp_path / "w"
    (workspace / "sub" / ".git").mkdir(parents=True)
    (workspace / "out").symlink_to(tmp_path)
    (workspace / "settings").symlink_to(workspace / "sub" / ".git")
    paths = PathPolicy(workspace=workspace)
    patterns = patterns_of(line("touch one", workspace), paths)
    for later in ("touch out/x", "cd out && touch x", "echo a | cat > out/x", "touch settings/x"):
        assert not is_covered(line(later, workspace), patterns, paths)
    assert is_covered(line("touch sub/x", workspace), patterns, paths)
    assert not is_covered(line("touch x", tmp_path), patterns, paths)


def test_a_program_with_a_relative_path_is_another_one_in_another_directory():
    patterns = patterns_of(line("./build.sh all"), PATHS)
    assert is_covered(line("./build.sh one"), patterns, PATHS)
    assert not is_covered(line("./build.sh one", ROOT / "sub"), patterns, PATHS)
    [shown_below] = patterns_of(line("./build.sh all", ROOT / "sub"), PATHS)
    assert shown_below == ExactLine("./build.sh all")


def test_a_line_that_is_too_long_is_covered_with_the_same_text_only():
    text = f"touch {'x' * 20_000}"
    assert not covers("touch one", text)
    assert covers(text, text)


@pytest.mark.parametrize(
    ("text", "always_asks"),
    [
        *((text, True) for text in ("rm .git/config", "touch a/.crush/x", "cat x > ~/.bashrc")),
        *(
            (text, True)
            for text in ("sh -c 'echo x >> .zshrc'", "cp x --target-directory=.git/hooks")
        ),
        *(
            (text, True)
            for text in ("git -C.git gc", "echo $(cat .git/HEAD)", "cat 'x > .git/config")
        ),
        *((text, True) for text in ("bash <<EOF\nrm .git/index\nEOF", "cd .git && touch x")),
        *((text, True) for text in ("echo {} > crush.json", "mv x sub/.crush.json")),
        *((text, False) for text in ("touch .gitignore", "git commit -m 'about .git'", "ls x.git")),
    ],
)
def test_git_crush_and_start_up_files_are_recognised(text, always_asks):
    assert line(text).is_protected is always_asks


@pytest.mark.parametrize(
    ("pattern", "text", "touched"),
    [
        ("git push *", "git push origin main", True),
        ("git push --force *", "git push --forc", True),
        ("git push --force *", "git push --fo=x", True),
        ("git push --force *", "git push -- main", False),
        ("rm *", "bash <<< 'rm x'", True),
        ("git push *", "git -C sub push", True),
        ("git push *", "true && /usr/bin/git push", True),
        ("git push *", "sh -c 'cd x; git push'", True),
        ("git push *", "env A=1 xargs git push", True),
        ("git push *", "echo $(git push)", True),
        ("git push *", "bash <<EOF\ngit push\nEOF", True),
        ("git push *", "git 'push", True),
        ("git push *", "git commit -m 'git push'", False),
        ("rm -rf *", "rm -r -f x", True),
        ("rm -rf *", "rm -r x", False),
        ("> *", "echo x > y", True),
        ("> *", "echo x > /dev/null 2>&1", False),
        ("*", "anything at all", True),
        ("= make all", "make all", True),
        ("= make all", "make all x", False),
    ],
)
def test_a_rule_that_asks_or_denies_finds_its_command_anywhere(pattern, text, touched):
    assert is_touched(line(text), parse_command(pattern)) is touched


# ── Properties ──────────────────────────────────────────────────────────────────────────────────

PROGRAMS = sorted(
    {"touch", "mkdir", "cp", "tee", "foo", "rm", "sh", "env", "cat", "git", "npm", "make"}
)
ARGUMENTS = [
    *("a", "b/c", "-r", "-f", "--x=y", "--exec", "commit", "push", "test", "../x", "/etc/x"),
    *("-c", "'a b'", '"$X"', "$(rm a)", "*.py", ".git/x", "~/x", "{a,b}", "-C/x", "a=b", "\\\n"),
]
JOINS = [" && ", "; ", " | ", " & ", "\n", " || ", " > ", " >> ", " <", " 2>&1 | ", "\n(", ") ; "]
commands = st.tuples(
    st.sampled_from(PROGRAMS), st.lists(st.sampled_from(ARGUMENTS), max_size=4)
).map(lambda found: " ".join([found[0], *found[1]]))
lines = st.lists(st.tuples(commands, st.sampled_from(JOINS)), min_size=1, max_size=4).map(
    lambda found: "".join(part for pair in found for part in pair)[: -len(found[-1][1])]
)


def programs_in(script):
    """Return every program of a script, by an independent walk."""
    found = set()
    for command in script.commands:
        if command.words:
            found.add(command.words[0].text)
        targets = [each.target for each in command.redirections]
        for word in (*command.words, *command.assignments, *targets):
            found |= {name for inner in word.scripts for name in programs_in(inner)}
    return found


@pytest.mark.heavy
@given(lines, lines)
def test_a_grant_never_covers_a_line_with_a_program_that_it_does_not_name(text, later):
    patterns = patterns_of(line(text), PATHS)
    if not is_covered(line(later), patterns, PATHS) or ExactLine(later.strip()) in patterns:
        return
    named = {each.program for each in patterns if isinstance(each, Invocation)}
    used = programs_in(read_script(later))
    assert used <= named | READERS
    assert not {program_name(each) for each in used} & (NEVER | AS_SHOWN)
    assert "/etc" not in later
    assert ".." not in later
    assert ".git" not in later
    assert "$" not in later


@given(lines)
def test_a_grant_covers_the_line_that_it_was_given_for(text):
    assert covers(text, text)


@given(lines)
def test_patterns_can_be_written_and_read_again(text):
    for pattern in patterns_of(line(text), PATHS):
        if isinstance(pattern, Invocation):
            assert parse_command(str(pattern)) == pattern


def test_no_program_is_in_two_lists_that_contradict_each_other():
    assert not NEVER & AS_SHOWN
    assert not NEVER & (READERS | set(SUBCOMMANDS))
    assert not AS_SHOWN & (READERS | set(SUBCOMMANDS))
