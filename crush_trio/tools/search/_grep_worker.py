"""The search program of `grep` for machines without ripgrep; runs as a separate process.

Python's regular expressions cannot be interrupted, and some take exponential time. Here they run in a
process that the parent kills at the time limit. It imports only the standard library and
`crush_trio.nofollow`, because every search waits for it to start.

It reads null-separated records from standard input: a JSON object (`pattern`, `literal`, `limit`,
`seconds`, `size`, `columns`), the resolved directory, then the files in it in the order in which to
search them. It writes one JSON array per matching line: number of the file, number of the line, text; and
one per file that is too large. It ends after `limit` lines.
"""

import json
import os
import re
import resource
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = 2 * 1024**3
"""Bytes of memory that this process may use."""

TOO_LARGE = 0
"""The number of a line that stands for a file that was not searched, because it is too large."""

INVALID = 2
"""The exit code for an invalid expression; the same as ripgrep's."""


def lines_of(path: bytes, size: int, root: int) -> "Iterator[tuple[int, str]]":
    """Yield the numbered lines of a text file; nothing if it is binary or unreadable.

    *path* is relative to the directory descriptor *root*. Links are not followed, nor those that were
    put in place of a directory after the files were listed. A file that is too large has one line with
    the number `TOO_LARGE`.
    """
    from crush_trio.nofollow import kind_of, open_by_steps

    try:
        handle = open_by_steps(os.fsdecode(path), os.O_RDONLY | os.O_NONBLOCK, at=root)
        with os.fdopen(handle, "rb") as file:
            regular = not kind_of(os.fstat(handle).st_mode)
            data = file.read(size + 1) if regular else b""
    except OSError:
        return
    if len(data) > size:
        yield TOO_LARGE, ""
        return
    lines = decode(data).split("\n")
    if not lines[-1]:
        del lines[-1]  # what ends in a line feed has no line after it
    yield from enumerate((line.removesuffix("\r") for line in lines), start=1)


def decode(data: bytes) -> str:
    """Return the text of a file, as `FileText` does, without byte order mark; empty if it is binary."""
    if data[:2] in {BOM_UTF16_LE, BOM_UTF16_BE}:
        return data.decode("utf-16", "replace")
    if b"\0" in data:
        return ""
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode("latin-1")


def search(
    expression: "re.Pattern[str]", root: int, files: "list[bytes]", limit: int, size: int
) -> "Iterator[tuple[int, int, str]]":
    """Yield the first *limit* lines in which the expression is found."""
    for number, path in enumerate(files):
        for line, text in lines_of(path, size, root):
            if line == TOO_LARGE:
                yield number, line, text
            elif expression.search(text):
                yield number, line, text
                limit -= 1
                if not limit:
                    return


def open_root(path: bytes) -> int:
    """Return a descriptor of the directory to search; -1 if it is a link by now, or gone."""
    from crush_trio.nofollow import open_by_steps

    try:
        return open_by_steps(os.fsdecode(path), os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return -1


def main() -> int:
    """Read the request from standard input, and write the matches."""
    request, directory, *files = sys.stdin.buffer.read().split(b"\0")
    order = json.loads(request)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    cpu = int(order["seconds"]) + 2  # in case the parent was killed and cannot stop this process
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    try:
        pattern = re.escape(order["pattern"]) if order["literal"] else order["pattern"]
        expression = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as exc:
        sys.stderr.write(str(exc) or "too complicated")
        return INVALID
    root = open_root(directory)
    if root < 0:
        return 0
    for number, line, text in search(expression, root, files, order["limit"], order["size"]):
        sys.stdout.write(json.dumps([number, line, text[: order["columns"]]]) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.path.append(__file__.rpartition("/crush_trio/")[0])
    sys.exit(main())
