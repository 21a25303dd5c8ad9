"""The torture kit against this project's own server, as a process, with the offline demo."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from crush_trio.testing.torture.__main__ import main

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.real_clock]


@pytest.fixture
def url(tmp_path):
    """Start a server that knows no model, so that the demo answers."""
    places = ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
    environ = {"PATH": os.environ["PATH"], **{name: str(tmp_path) for name in places}}
    argv = [sys.executable, "-m", "crush_trio", "serve", "--host", "tcp://127.0.0.1:0"]
    with subprocess.Popen(
        argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            lines = iter(process.stdout.readline, "")
            said = next(line for line in lines if line.startswith("Listening on"))
            yield f"http://{re.search(r'127[^ ]*[0-9]', said)[0]}"
        finally:
            process.kill()


def test_our_server_keeps_every_promise_in_both_profiles(url):
    """Both at once: most of the time the kit waits for the demo to speak."""
    with ThreadPoolExecutor(2) as threads:
        codes = list(
            threads.map(main, (["--url", url, "--profile", form] for form in ("crush", "native")))
        )
    assert codes == [0, 0]
