"""Searches files for a regular expression, as a program of its own.

Python's regular expressions cannot be interrupted, and some take longer than the universe has. Here
they run in a process that its parent kills when the time is up. It imports the standard library only,
because every search waits for its start.

It reads null-terminated records: a JSON object (`pattern`, `literal`, `limit`, `seconds`, `size`,
`columns`), then the files in the order in which to search them. It writes one JSON array per matching
line: the number of the file, the number of the line, its text. It ends after `limit` of them.
"""

import json
import os
import re
import resource
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = 2 * 1024**3
"""Bytes this process may use."""

SNIFFED = 8192
"""A null character among this many bytes makes a file binary."""

INVALID = 2
"""The exit code for an expression that is none; ripgrep's, too."""


def open_plain(path: str, flags: int) -> int:
    """Open a plain file and nothing else: a link leads elsewhere, a pipe has no end."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a plain file")
    return descriptor


def lines_of(path: bytes, size: int) -> "Iterator[tuple[int, str]]":
    """Yield the numbered lines of a text file; a file that is none, or too large, has no lines."""
    try:
        with open(path, "rb", opener=open_plain) as file:
            data = file.read(size + 1)
    except OSError:
        return
    if len(data) <= size and b"\0" not in data[:SNIFFED]:
        lines = data.decode("utf-8", "replace").split("\n")
        yield from enumerate((line.removesuffix("\r") for line in lines), start=1)


def search(
    expression: "re.Pattern[str]", files: "list[bytes]", limit: int, size: int
) -> "Iterator[tuple[int, int, str]]":
    """Yield the first *limit* lines in which the expression is found."""
    for number, path in enumerate(files):
        for line, text in lines_of(path, size):
            if expression.search(text):
                yield number, line, text
                limit -= 1
                if not limit:
                    return


def main() -> int:
    """Read what to search from standard input, and write what was found."""
    request, *files = sys.stdin.buffer.read().split(b"\0")
    order = json.loads(request)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    cpu = int(order["seconds"]) + 2  # should nobody be there to stop us
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    try:
        pattern = re.escape(order["pattern"]) if order["literal"] else order["pattern"]
        expression = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as exc:
        sys.stderr.write(str(exc) or "too complicated")
        return INVALID
    for number, line, text in search(expression, files, order["limit"], order["size"]):
        sys.stdout.write(json.dumps([number, line, text[: order["columns"]]]) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
