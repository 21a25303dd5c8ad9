"""The shell tools: what they run, what they ask, and what they tell the model."""

from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.tools.base import ToolError
from crush_trio.tools.shell.bash import BashTool, JobKillTool, JobOutputTool
from crush_trio.tools.shell.jobs import JobOutput, describe_output
from crush_trio.tools.shell.process import Command, CommandEnd
from tests.tools.shell_bench import ScriptedCommands, open_shell_bench

# Deadlines and threads do not mix on a virtual clock (a call judges its command in a thread), so
# the tests that wait for a threshold take the real one.


def real(test):
    """Mark a test that starts processes or waits in real time."""
    return pytest.mark.slow(pytest.mark.real_clock(test))


COMMAND = Command(argv=("true",), working_dir=Path("/"), env={})


def ended(code=0, *, stopped=False):
    return CommandEnd(exit_code=code, stopped=stopped, started_at=0, ended_at=0)


# ── What the model is told ──────────────────────────────────────────────────────────────────────


@pytest.mark.item("H13")
@pytest.mark.parametrize(
    ("stdout", "stderr", "how", "text"),
    [
        ("out\n", "", ended(), "out"),
        ("", "err\n", ended(), "err"),
        ("out\n", "err\n", ended(), "out\n\nerr"),
        ("out\n", "", ended(3), "out\nExit code 3"),
        ("out\n", "err\n", ended(3), "out\n\nerr\nExit code 3"),
        ("", "", ended(1), "Exit code 1"),
        ("", "", ended(), ""),
        ("", "", None, ""),
        ("out\n", "", None, "out"),
        ("out", "", ended(None, stopped=True), "out\nCommand was aborted before completion"),
        ("  indented\n\n", "", ended(), "  indented"),
    ],
)
def test_output_is_told_in_one_piece(stdout, stderr, how, text):
    assert describe_output(JobOutput(stdout=stdout, stderr=stderr, ended=how)) == text


@pytest.mark.item("H13")
@real
async def test_the_result_ends_with_the_directory_and_has_metadata_for_viewers(tmp_path):
    (tmp_path / "sub").mkdir()
    async with open_shell_bench(tmp_path) as tools:
        result = await tools.bash("echo out; echo err >&2; exit 3", working_dir="sub")
    assert result.content == f"out\n\nerr\nExit code 3\n\n<cwd>{tmp_path}/sub</cwd>"
    assert not result.is_error
    times = [result.metadata.pop("start_time"), result.metadata.pop("end_time")]
    assert times == sorted(times)
    assert times[0] > 1_600_000_000_000
    assert result.metadata == {
        "output": "out\n\nerr\nExit code 3",
        "description": "a test",
        "working_directory": f"{tmp_path}/sub",
        "sandbox": tools.bench.sandbox.kind.value,
        "approval": "approved",
    }


@pytest.mark.item("H13")
@real
async def test_a_command_without_output_says_so(tmp_path):
    async with open_shell_bench(tmp_path) as tools:
        result = await tools.bash("true")
    assert result.content == "no output"
    assert result.metadata["output"] == ""


@pytest.mark.item("H13")
@real
async def test_each_stream_is_limited_to_thirty_thousand_columns(tmp_path):
    async with open_shell_bench(tmp_path) as tools:
        result = await tools.bash("seq -w 100000; echo; seq -w 100000 >&2")
    out, out_marker, out_end, err, err_marker, err_end = result.metadata["output"].split("\n\n")
    assert out.startswith("000001\n000002\n")
    assert out_end.endswith("099999\n100000")
    assert len(out) + len(out_end) <= 30_000
    assert len(err) + len(err_end) <= 30_000
    lines = out.count("\n") + out_end.count("\n")
    assert 95_000 < int(out_marker.split()[1]) <= 100_002 - lines
    assert err_marker.endswith("lines truncated …")


@pytest.mark.item("H9")
@real
async def test_commands_find_nobody_at_the_terminal(tmp_path):
    script = (
        'echo "$CRUSH $AGENT $AI_AGENT $TERM $PAGER $GIT_PAGER $EDITOR $GIT_TERMINAL_PROMPT $OWN"'
    )
    async with open_shell_bench(tmp_path, OWN="mine", BASH_ENV="/tmp/evil", EDITOR="vi") as tools:
        result = await tools.bash(script)
        assert result.metadata["output"] == "1 crush crush xterm-256color cat cat true 0 mine"
        result = await tools.bash("cat; echo ${BASH_ENV:-none}")
        assert result.metadata["output"] == "none"


@real
async def test_a_command_that_begins_with_a_hyphen_is_no_option_of_the_shell(tmp_path):
    async with open_shell_bench(tmp_path) as tools:
        result = await tools.bash("-l")
    assert "Exit code 127" in result.content


# ── What is asked and refused ───────────────────────────────────────────────────────────────────


@pytest.mark.item("H10", "L18")
@real
async def test_looking_is_not_asked_for(tmp_path):
    async with open_shell_bench(tmp_path) as tools:
        result = await tools.bash("pwd && ls -a")
        assert result.content.startswith(str(tmp_path))
        assert tools.person.asked == []


@real
async def test_looking_is_asked_for_if_a_rule_of_the_user_is_about_the_command(tmp_path):
    def about_ls(command, directory):
        assert directory == tmp_path
        return command == "ls"

    async with open_shell_bench(tmp_path) as tools:
        tools.restricted = about_ls
        assert (await tools.bash("ls")).metadata["approval"] == "approved"
        assert (await tools.bash("pwd")).metadata["approval"] == "unasked"
        tools.person.refuses = True
        with pytest.raises(ToolError, match="denied"):
            await tools.bash("ls")
        assert [each.params["command"] for each in tools.person.asked] == ["ls", "ls"]


@pytest.mark.item("H10")
@real
async def test_everything_else_is_asked_for_with_what_a_person_must_know(tmp_path):
    (tmp_path / "sub").mkdir()
    async with open_shell_bench(tmp_path) as tools:
        await tools.bash("touch made", working_dir="sub", auto_background_after=5)
        [wanted] = tools.person.asked
    assert (tmp_path / "sub" / "made").exists()
    assert (wanted.action, wanted.path) == ("execute", tmp_path / "sub")
    assert wanted.description == "Execute command: touch made"
    assert wanted.params == {
        "description": "a test",
        "command": "touch made",
        "working_dir": str(tmp_path / "sub"),
        "run_in_background": False,
        "auto_background_after": 5,
    }


@real
async def test_a_command_that_is_denied_does_not_run(tmp_path):
    async with open_shell_bench(tmp_path) as tools:
        tools.person.refuses = True
        with pytest.raises(ToolError, match="denied") as denied:
            await tools.bash("touch made")
        assert denied.value.result.stop_turn
    assert list(tmp_path.iterdir()) == []


@pytest.mark.item("H11")
@real
async def test_a_refused_command_is_not_even_asked_for(tmp_path):
    async with open_shell_bench(tmp_path) as tools:
        with pytest.raises(ToolError, match="not allowed for security reasons: curl"):
            await tools.bash("touch made; sh -c 'curl x'")
        assert tools.person.asked == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"command": " "}, "command is required"),
        ({"command": "ls", "working_dir": "missing"}, "not a directory"),
        ({"command": "ls", "working_dir": "x\0y"}, "not a usable directory"),
        ({"command": "ls\0"}, "not a usable command"),
    ],
)
@real
async def test_arguments_that_cannot_be_used_are_told_to_the_model(tmp_path, arguments, reason):
    async with open_shell_bench(tmp_path) as tools:
        with pytest.raises(ToolError, match=reason):
            await tools.bash(**arguments)


@real
async def test_a_working_directory_outside_the_workspace_is_asked_for(tmp_path):
    (tmp_path / "workspace").mkdir()
    async with open_shell_bench(tmp_path / "workspace") as tools:
        await tools.bash("ls", working_dir="..")
        assert tools.person.asked[0].path == tmp_path


# ── Behind the foreground ───────────────────────────────────────────────────────────────────────


@pytest.mark.item("H12")
@real
async def test_a_command_that_takes_too_long_goes_on_in_the_background(tmp_path):
    commands = ScriptedCommands(ending=0)
    async with open_shell_bench(tmp_path, commands) as tools:
        began = trio.current_time()
        result = await tools.bash("make", auto_background_after=1)
        assert 1 <= trio.current_time() - began < 2
        assert "job 001" in result.content
        assert "<" not in result.content, "clients show it as it is"
        assert result.metadata["background"] is True
        assert result.metadata["shell_id"] == "001"
        [command] = commands.opened
        command.stdout.append(b"more\n")
        command.finish(2)
        shown = await tools.job_output("001", wait=True)
        assert shown.content == "Status: completed\n\nmore\nExit code 2"


@pytest.mark.item("H12")
@real
async def test_a_background_command_returns_after_a_second_with_its_id(tmp_path):
    commands = ScriptedCommands(ending=0)
    async with open_shell_bench(tmp_path, commands) as tools:
        began = trio.current_time()
        result = await tools.bash("make", run_in_background=True, auto_background_after=50)
        assert 1 <= trio.current_time() - began < 2
        assert result.metadata["shell_id"] == "001"


@pytest.mark.item("H12")
@real
async def test_a_background_command_that_has_ended_by_then_returns_its_result(tmp_path):
    async with open_shell_bench(tmp_path) as tools:
        result = await tools.bash("echo quick", run_in_background=True)
        assert result.metadata["output"] == "quick"
        # Clients show the raw text, with its tags, of what says to be in the background.
        assert not {"background", "shell_id"} & result.metadata.keys()
        assert tools.jobs.list() == ()


async def test_the_output_of_a_job_is_shown_while_it_runs(tmp_path):
    commands = ScriptedCommands()
    async with open_shell_bench(tmp_path, commands) as tools:
        job = tools.jobs.start("make", COMMAND, description="build")
        await wait_all_tasks_blocked()
        assert (await tools.job_output(job.id)).content == "Status: running\n\nno output"
        commands.opened[0].stdout.append(b"one\n")
        commands.opened[0].stderr.append(b"two\n")
        shown = await tools.job_output(job.id)
        assert shown.content == "Status: running\n\none\n\ntwo"
        assert shown.metadata == {
            "shell_id": "001",
            "command": "make",
            "description": "build",
            "done": False,
            "working_directory": "/",
        }


async def test_waiting_for_a_job_ends_with_the_run_and_the_job_goes_on(tmp_path):
    async with open_shell_bench(tmp_path, ScriptedCommands()) as tools:
        job = tools.jobs.start("make", COMMAND)
        with trio.move_on_after(5) as run:
            await tools.job_output(job.id, wait=True)
        assert run.cancelled_caught
        assert job.running


async def test_a_killed_job_is_ended_and_gone(tmp_path):
    async with open_shell_bench(tmp_path, ScriptedCommands()) as tools:
        job = tools.jobs.start("make", COMMAND, description="build")
        await wait_all_tasks_blocked()
        result = await tools.job_kill(job.id)
        assert result.content == "Background job 001 was ended."
        assert result.metadata == {"shell_id": "001", "command": "make", "description": "build"}
        assert job.ended.stopped
        for gone in (tools.job_output, tools.job_kill):
            with pytest.raises(ToolError, match="001"):
                await gone("001")


def test_descriptions_and_schemas_are_there(tmp_path):
    for tool in (BashTool(None, None), JobOutputTool(None), JobKillTool(None)):
        assert len(tool.description) > 100
        assert tool.parameters["type"] == "object"
    assert BashTool(None, None).parameters["required"] == ["command", "description"]
    assert not any(tool.parallel for tool in (BashTool, JobOutputTool, JobKillTool))
