"""The driver's small parts: what a prompt asks of the scripted model, what a process is seen to use."""

import os
import time

import orjson
import pytest

from benchmarks.__main__ import WORKLOADS, parse
from benchmarks.driver.process import Gauge, resident
from benchmarks.driver.provider import Script, parse_prompt, tokens
from benchmarks.driver.targets import write_config
from benchmarks.workloads.fanout import BURST, DRIP, Cell


@pytest.mark.parametrize(
    ("prompt", "script"),
    [
        ("say 20", Script(count=20)),
        ("drip 3 5 #tag-1", Script(count=3, pause=0.005, tag="tag-1")),
        ("hold #t", Script(ends=False, tag="t")),
        ("say", Script()),
        ("Please say 20 things", Script()),
        ("", Script()),
    ],
)
def test_a_prompt_tells_the_model_what_to_say(prompt, script):
    assert parse_prompt(prompt) == script


def test_the_model_says_so_many_tokens():
    assert len(tokens(2000)) == 2000
    assert parse_prompt("say 3").text == "".join(tokens(3))


def test_a_cell_asks_for_what_it_is_named_after():
    assert Cell(1, "native", BURST, 10).prompt == "say 10"
    assert Cell(100, "crush", DRIP).prompt == "drip 2000 5"
    assert Cell(1, "native", BURST).named("wall") == "native, 1 client, burst: wall"


def test_resident_memory_is_read_from_the_kernels_words():
    assert resident("Name:\tx\nVmHWM:\t 9 kB\nVmRSS:\t    2048 kB\nThreads:\t1\n") == 2048 * 1024


def test_a_process_is_seen_to_use_the_processor():
    gauge = Gauge(os.getpid())
    seen, own = gauge.cpu(), time.process_time()
    assert abs(seen - own) < 0.05
    assert gauge.cpu() >= seen
    assert gauge.rss() > 2**20


def test_the_workspace_points_servers_at_the_model(tmp_path):
    write_config(tmp_path, "http://127.0.0.1:9/v1")
    config = orjson.loads((tmp_path / "crush.json").read_bytes())
    assert config["providers"]["script"]["base_url"] == "http://127.0.0.1:9/v1"
    assert config["models"]["large"] != config["models"]["small"]


def test_every_workload_has_a_letter_of_its_own():
    letters = [module.LETTER for module in WORKLOADS]
    assert len(set(letters)) == len(letters)
    assert all(len(letter) == 1 for letter in letters)


def test_workloads_are_chosen_by_letter():
    assert parse(["--only", "a, d"]).only == {"a", "d"}
    with pytest.raises(SystemExit):
        parse(["--only", "z"])
