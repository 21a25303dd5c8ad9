"""The picture of the README is a recording: the recorder still works, and shows the same."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
VARIES = re.compile(r"after [\d.]+ s|in [\d.]+ s|session \w+")


def lines_of(picture):
    """Return the text of a picture, line by line, without what is different in every run."""
    rows = {}
    for node in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text"):
        rows.setdefault(float(node.get("y", 0)), []).append(node.text or "")
    text = (re.sub(r"\s+", " ", "".join(rows[y])).strip() for y in sorted(rows))
    return [VARIES.sub("…", line) for line in text if line]


def test_the_picture_needs_nothing_from_elsewhere():
    text = (PICTURES / "run.svg").read_text("utf-8")
    assert "url(http" not in text
    assert "href" not in text


@pytest.mark.long
@pytest.mark.slow
def test_recording_again_shows_the_same(tmp_path):
    recorder = [sys.executable, str(PICTURES / "record.py"), str(tmp_path / "run.svg")]
    subprocess.run(recorder, check=True, timeout=90)
    kept, recorded = lines_of(PICTURES / "run.svg"), lines_of(tmp_path / "run.svg")
    assert "Stopped 1 run …; nothing is left running." in kept
    spoken = re.compile(
        "A task that|parent|water|until|nobody"
    )  # cut short where the key was pressed
    same = [line for line in kept if not spoken.match(line)]
    assert [line for line in recorded if not spoken.match(line)] == same, "record it again"
