"""The direct shell command of a person: workspace, environment, colours, and whose end is its end."""

import pytest
import trio

from crush_trio.tools.shell.environment import run_shell
from tests.tools.process_probe import Mailbox, Probe
from tests.tools.shell_bench import open_shell_bench

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.item("D34")]


@pytest.fixture
def probe(tmp_path):
    probe = Probe(tmp_path)
    yield probe
    probe.kill_all()


async def test_errors_come_after_the_output_and_a_newline(tmp_path):
    async with open_shell_bench(tmp_path) as tools:
        answer = await run_shell(tools.bench, tools.jobs, "echo 1; echo 2 >&2; echo 3; exit 4")
        failed = await run_shell(tools.bench, tools.jobs, "echo 2 >&2")
    assert (answer.output, answer.exit_code) == ("1\n3\n\n2\n", 4)
    assert failed.output == "2\n"


async def test_it_runs_in_the_workspace_with_its_environment_and_in_colour(tmp_path):
    script = 'pwd; echo "$OWN $CLICOLOR_FORCE $FORCE_COLOR ${NO_COLOR-unset} $COLUMNS"'
    async with open_shell_bench(tmp_path, OWN="mine", NO_COLOR="1") as tools:
        answer = await run_shell(tools.bench, tools.jobs, script, columns=120)
    assert answer.output == f"{tmp_path}\nmine 1 1 unset 120\n"


async def test_nobody_is_asked_and_nothing_is_refused(tmp_path):
    async with open_shell_bench(tmp_path) as tools:
        answer = await run_shell(tools.bench, tools.jobs, "sudo() { echo as typed; }; sudo x")
        assert tools.person.asked == []
    assert answer.output == "as typed\n"


async def test_a_client_that_hangs_up_ends_its_command(probe):
    async with open_shell_bench(probe.directory) as tools:
        with trio.fail_after(5), trio.move_on_after(0.2) as request:
            await run_shell(tools.bench, tools.jobs, f"{probe.sleep} & {probe.sleep}")
        assert request.cancelled_caught
        assert probe.left() == []
        assert tools.jobs.list() == ()


async def test_a_workspace_that_closes_ends_the_command_and_answers(probe):
    answers = []

    async def request(tools, script):
        answers.append(await run_shell(tools.bench, tools.jobs, script))

    with trio.fail_after(5), Mailbox(probe.directory) as mailbox:
        async with trio.open_nursery() as requests:
            async with open_shell_bench(probe.directory) as tools:
                requests.start_soon(request, tools, f"echo ready > {mailbox}; {probe.sleep}")
                await mailbox.line()
            assert probe.left() == []
    assert answers[0].exit_code != 0
    assert "aborted" in answers[0].output
