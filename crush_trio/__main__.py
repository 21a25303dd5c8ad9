"""`python -m crush_trio` and the program `crush-trio`: what comes before the first import.

Ctrl-C while the program still imports ends it without a traceback, as it ends other programs: the
commands receive signals themselves once they run. And file names are UTF-8 in every locale.
"""

import os
import signal
import sys


def start() -> int:
    """Run the program; return its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _use_utf8()
    from crush_trio.cli.main import main

    return main()


def _use_utf8() -> None:
    """Execute the program anew in Python's UTF-8 mode if the locale has another encoding.

    In a Latin-1 or ASCII locale Python cannot name a file with other letters: every path, argument and
    environment variable with one of them would be an error in the middle of a run. `cli.main` still
    writes to the terminal in the encoding of the locale.
    """
    if not sys.flags.utf8_mode and sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


if __name__ == "__main__":
    sys.exit(start())
