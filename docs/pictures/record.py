"""Records a terminal: `python docs/pictures/record.py [FILE]` writes `docs/pictures/run.svg`, or FILE.

The commands are really run, each in a terminal of its own, with an empty home and the offline model. The
part of the person is played by keys that are sent when something appears. What is drawn is what is on
the screen in the end; nothing in it is edited.
"""

import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Final

import pexpect
from attrs import define, field, frozen
from rich.console import Console
from rich.text import Text

PICTURE: Final = Path(__file__).with_name("run.svg")
PROGRAM: Final = Path(sys.executable).with_name("crush-trio")
ROWS, COLUMNS = 50, 92
LIMIT: Final = 30
MOMENT: Final = 0.5
"""Seconds that a person needs to press a key; a dialog takes none that was pressed before it was read."""


@frozen
class Scene:
    """A prompt, and the key that is pressed when a text appears."""

    prompt: str
    appears: str
    key: str


SCENES: Final = (
    Scene("write hello to hello.txt", "Allow this", "y"),
    Scene("long 500", "Whoever asks", "\x03"),
)

_PIECES: Final = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])|(\n)|([^\x1b\r\n]+)")


@define(eq=False)
class Screen:
    """As much of a terminal as the program uses: lines with styles, up, and erase to the end."""

    lines: list[str] = field(factory=lambda: [""])
    row: int = 0

    def feed(self, data: str) -> None:
        """Take what a program writes."""
        for private, numbers, command, down, text in _PIECES.findall(data):
            if text:
                self.lines[self.row] += text
            elif down:
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif command == "m":
                self.lines[self.row] += f"\x1b[{numbers}m"
            elif command == "A":
                self.row -= int(numbers or 1)
            elif command == "J":
                self.lines[self.row :] = [""]
            elif command != "C" and not private:
                raise ValueError(f"the program wants more of a terminal: {numbers}{command}")

    def text(self) -> Text:
        """Return what is on the screen."""
        return Text("\n").join(Text.from_ansi(line) for line in self.lines)


@contextmanager
def empty_home() -> Iterator[Path]:
    """Make a directory with nothing in it, of a name that looks well in a picture.

    An empty one may be there already: a recording that was killed leaves it behind.
    """
    home = Path(gettempdir(), "crush-demo")
    with suppress(FileNotFoundError):
        home.rmdir()
    home.mkdir()
    try:
        yield home
    finally:
        shutil.rmtree(home)


def play(scene: Scene, home: Path) -> Text:
    """Run a scene and return its screen."""
    environment = {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        "PATH": os.environ["PATH"],
        "TERM": "xterm-256color",
        "CRUSH_TRIO_BACKGROUND": "0",
        "COLORTERM": "truecolor",
    }
    child = pexpect.spawn(
        str(PROGRAM),
        ["run", scene.prompt],
        cwd=str(home),
        env=environment,
        dimensions=(ROWS, COLUMNS),
        encoding="utf-8",
        timeout=LIMIT,
    )
    written = io.StringIO()
    child.logfile_read = written
    child.expect_exact(scene.appears)
    child.expect_exact(pexpect.TIMEOUT, timeout=MOMENT)  # goes on reading, as a terminal does
    child.send(scene.key)
    child.expect_exact(pexpect.EOF)
    child.close()
    screen = Screen()
    screen.feed(written.getvalue())
    command = Text.assemble(("$ ", "bold green"), (f'crush-trio run "{scene.prompt}"', "bold"))
    return Text("\n").join([command, screen.text()])


def main(picture: Path) -> None:
    """Play all scenes and draw them into *picture*, one below the other."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    with empty_home() as home:
        for scene in SCENES:
            console.print(play(scene, home))
    drawing = console.export_svg(title="crush-trio", unique_id="run")
    fontless = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL)  # nothing from elsewhere
    picture.write_text("\n".join(line.rstrip() for line in fontless.splitlines()) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(*sys.argv[1:]) if sys.argv[1:] else PICTURE)
