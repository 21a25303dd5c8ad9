"""`crush-trio run` in scripts: pipes, programs, signals, and a server or none."""

import json
import os
import signal
import subprocess

import pytest

from crush_trio.config import Places
from tests.cli.processes import LIMIT, Home, processes_with

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def test_without_a_server_and_without_a_key_the_demo_answers_and_says_how_to_go_on(home):
    code, out, err = home.call("run", "hello")
    assert code == 0
    assert out.startswith("I am the offline demo of crush_trio.")
    assert "ANTHROPIC_API_KEY" in err
    assert "\x1b" not in out + err
    assert list((home.root / "run").iterdir()) == [], "the socket of the embedded server is gone"


def test_a_program_reads_one_object_for_each_thing_that_happens(home):
    code, out, err = home.call("run", "-o", "stream-json", "run `echo hi`", "--policy", "allow")
    assert (code, err) == (0, "")
    lines = objects(out)
    assert (lines[0]["type"], lines[0]["server"]) == ("start", "embedded")
    kinds = [line["type"] for line in lines]
    assert kinds.index("tool_call") < kinds.index("tool_result") < kinds.index("text")
    assert kinds[-1] == "end"
    text = "".join(line["text"] for line in lines if line["type"] == "text")
    assert lines[-1]["text"] == text
    assert lines[-1]["exit_code"] == 0


def test_a_prompt_that_is_too_long_is_refused_with_a_sentence(home):
    home.extra["CRUSH_TRIO_LIMITS"] = "prompt=10"
    code, out, err = home.call("run", "hello, are you there?")
    assert (code, out) == (1, "")
    assert "the prompt is too long" in err
    assert "Next: shorten it" in err


def test_an_answer_that_is_too_long_ends_the_run_with_a_sentence(home):
    home.extra["CRUSH_TRIO_LIMITS"] = "answer=20"
    code, out, err = home.call("run", "hello")
    assert code == 1
    assert out.startswith("I am the offline dem")
    assert "the answer is too long (answer_too_long)" in err


@pytest.mark.long
def test_a_session_is_continued_by_its_id_or_because_it_is_the_last(home):
    _, out, _ = home.call("run", "-o", "json", "think about lunch")
    [first] = objects(out)
    _, out, _ = home.call("run", "-o", "json", "--session", first["session_id"][:8], "think")
    [second] = objects(out)
    _, out, _ = home.call("run", "-o", "json", "--continue", "think")
    [third] = objects(out)
    assert first["session_id"] == second["session_id"] == third["session_id"]
    code, out, _ = home.call("sessions", "--json")
    [listed] = json.loads(out)
    assert (code, listed["message_count"]) == (0, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--continue"], "there is no session here yet"),
        (["--session", "abcdefgh"], "session not found"),
        (["--model", "gpt-17"], "no such model: 'gpt-17'"),
    ],
)
def test_what_cannot_be_found_is_said_with_what_to_do(home, arguments, message):
    code, out, err = home.call("run", *arguments, "hello")
    assert (code, out) == (1, "")
    what, following = err.splitlines()
    assert message in what
    assert following.startswith("Next: ")


@pytest.mark.long
def test_a_prompt_comes_through_a_pipe(home):
    code, out, _ = home.call("run", "-q", "think", "about", "-", text="the weather\n")
    assert (code, out) == (0, "I have thought about the weather. Nothing came of it.\n")
    code, out, _ = home.call("run", "-q", text="think about rain")
    assert (code, out) == (0, "I have thought about rain. Nothing came of it.\n")


def test_characters_that_standard_output_cannot_encode_are_replaced_and_in_json_escaped(home):
    """File names with other letters are found in such a locale too: it was an error of the run."""
    home.extra |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    (home.work / "☕.txt").write_text("tea\n")
    code, out, err = home.call("run", "-q", "view", "-", text="☕.txt")
    assert (code, "tea" in out, err) == (0, True, "")
    code, out, err = home.call("run", "-q", "think about", "-", text="a café ☕")
    assert (code, err) == (0, "")
    assert out == "I have thought about a caf? ?. Nothing came of it.\n"
    code, out, err = home.call("run", "-q", "-o", "json", "think about", "-", text="a café ☕")
    assert (code, err) == (0, "")
    assert objects(out)[0]["text"] == "I have thought about a café ☕. Nothing came of it."


@pytest.mark.item("F5")
def test_where_nobody_can_be_asked_the_answer_is_no_and_says_how_to_make_it_yes(home):
    code, out, err = home.call("run", "-q", "run `touch made`")
    assert (code, out) == (4, "")
    assert "not allowed to use bash touch made" in err
    assert "--allow-tool bash" in err
    assert not (home.work / "made").exists()
    assert home.call("run", "-q", "--allow-tool", "bash", "run `touch made`")[0] == 0
    assert (home.work / "made").exists()


def test_a_run_whose_time_is_up_is_cancelled(home):
    code, out, err = home.call("run", "--timeout", "0.5", "-o", "json", "long 5000")
    assert (code, err) == (124, "")
    [report] = objects(out)
    assert (report["outcome"], report["exit_code"]) == ("cancelled", 124)
    assert report["receipt"]["complete"]


@pytest.mark.item("A9")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_the_run_with_its_processes_and_prints_the_receipt(home, number, code):
    command = f"sleep 98765.{os.getpid()}{code}"
    arguments = ["run", "-o", "stream-json", "--policy", "allow", f"run `{command}`"]
    with home.started(*arguments) as process:
        for line in process.stdout:
            if json.loads(line)["type"] == "tool_call":
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (code, "")
    last = objects(out)[-1]
    assert (last["outcome"], last["exit_code"]) == ("cancelled", code)
    [hit] = last["receipt"]["hits"]
    assert hit["ended"] == "cancelled"
    assert last["receipt"]["complete"]
    assert processes_with(command) == []


def test_a_server_that_is_there_is_used(home):
    with home.server():
        _, out, _ = home.call("run", "-o", "json", "think")
    [report] = objects(out)
    assert report["server"] == f"unix://{home.root}/run/crush-{os.getuid()}.sock"


def test_a_reader_that_goes_away_ends_the_command(home):
    program = ["bash", "-c", 'set -o pipefail; "$@" | head -n 1', "-"]
    command = [
        *program,
        os.sys.executable,
        "-m",
        "crush_trio",
        "run",
        "--demo",
        "-o",
        "stream-json",
        "long 3000",
    ]
    done = subprocess.run(
        command, cwd=home.work, env=home.environ, capture_output=True, timeout=LIMIT, check=False
    )
    assert json.loads(done.stdout)["type"] == "start"
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr


CONFIG = {
    "providers": {
        "local": {
            "type": "openai-compat",
            "base_url": "http://127.0.0.1:9/v1",
            "api_key": "k",
            "models": [
                {"id": name, "name": name, "context_window": 1000, "default_max_tokens": 100}
                for name in ("coder", "other")
            ],
        }
    }
}


@pytest.mark.long
def test_another_model_is_used_for_one_run_and_what_was_chosen_stays(home):
    own = home.root / "home" / ".config" / "crush"
    own.mkdir(parents=True)
    (own / "crush.json").write_text(json.dumps(CONFIG))
    places = Places(directory=home.work, home=home.root / "home")
    chosen = places.workspace_file
    code, out, err = home.call("run", "-o", "json", "--timeout", "1", "--model", "other", "hello")
    [report] = objects(out)
    assert report["model"] == "local/other"
    assert code in {1, 124}, err
    assert not chosen.exists()
    chosen.parent.mkdir(parents=True)
    chosen.write_text(json.dumps({"models": {"large": {"provider": "local", "model": "other"}}}))
    home.call("run", "-o", "json", "--timeout", "1", "--model", "local/coder", "hello")
    large = json.loads(chosen.read_text())["models"]["large"]
    assert (large["provider"], large["model"]) == ("local", "other")
