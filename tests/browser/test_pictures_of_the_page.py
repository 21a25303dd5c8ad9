"""The pictures of docs/page.md can be made again: `CRUSH_TRIO_PICTURES=docs/pictures` puts them there."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.browser.driving import HERE, LIMIT, MARKS, about, limited, page_server

pytestmark = MARKS

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SMALL = 120_000


def size_of(picture):
    """Return the width and the height of a PNG."""
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


def test_the_pictures_of_the_page_are_made_again(tmp_path):
    folder = Path(os.environ.get("CRUSH_TRIO_PICTURES", tmp_path)).absolute()
    with TemporaryDirectory(prefix="demo-") as place, page_server(Path(place)) as server:
        what = json.dumps({**about(server), "pictures": str(folder)})
        command = [shutil.which("node"), str(HERE / "pictures.mjs"), what]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as node:
            with limited(node):
                said = node.stdout.read()
            node.wait(LIMIT)
    assert said.endswith("passed\n"), said
    kept = sorted(PICTURES.glob("page-*.png"))
    made = sorted(folder.glob("page-*.png"))
    assert [each.name for each in made] == [each.name for each in kept]
    assert [size_of(each) for each in made] == [size_of(each) for each in kept]
    assert all(each.stat().st_size < SMALL for each in kept)
