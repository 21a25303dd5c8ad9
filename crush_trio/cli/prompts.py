"""Where a prompt comes from: the words of the command line, and what is piped in."""

import os
import stat
import sys
from collections.abc import Sequence
from typing import TextIO

from crush_trio.cli.errors import PromptMissing

STDIN = "-"
"""The argument that stands for what is piped in."""


def read_prompt(words: Sequence[str]) -> str:
    """Return the prompt, reading standard input where it has something to say.

    That is where an argument asks for it, or where a pipe or a file stands in the place of the
    terminal. Raises `PromptMissing`.
    """
    stream: TextIO | None = sys.stdin
    wanted = stream is not None and (STDIN in words or _is_piped(stream))
    text = sys.stdin.buffer.read().decode(errors="replace") if wanted else ""
    prompt = join_prompt(words, text)
    if not prompt:
        raise PromptMissing
    return prompt


def join_prompt(words: Sequence[str], piped: str) -> str:
    """Return words and piped text as one prompt: in the place of `-`, or else below the words."""
    if STDIN in words:
        return " ".join(piped.strip() if word == STDIN else word for word in words).strip()
    return "\n\n".join(part for part in (" ".join(words).strip(), piped.strip()) if part)


def _is_piped(stream: TextIO) -> bool:
    """Whether something can be expected to come and to end: neither a terminal nor a device does."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
