"""What must be true of prompts, readers and stored rows after a round, whatever failed in it."""

from collections import Counter
from collections.abc import Sequence

from benchmarks.chaos.clients import Prompt, Reader, Round
from benchmarks.chaos.promises import Rows
from benchmarks.driver.provider import parse_prompt
from benchmarks.soak.ledger import ENDED, Violation
from crush_trio.testing.torture.view import is_finished, text_of


def check_prompt(prompt: Prompt, rows: Rows, asked: int, readers: Sequence[Reader]) -> None:
    """Check that a prompt has one ending, everywhere the same, and was asked about at most once."""
    tag, found = prompt.tag, rows.runs.get(prompt.tag, [])
    if len(found) != 1:
        raise Violation(f"{tag} was accepted, and is stored {len(found)} times")
    [row] = found
    if row.state not in ENDED:
        raise Violation(f"{tag} is {row.state} on disk")
    for number, reader in enumerate(readers):
        told = reader.view.endings.get(tag)
        if told != row.state:
            raise Violation(f"{tag} is {row.state} on disk, and reader {number} was told {told}")
    if asked > 1:
        raise Violation(f"the model was asked {asked} times about {tag}")
    if row.state == "completed" and not asked:
        raise Violation(f"{tag} is completed, and the model was never asked")
    if row.state == "completed" and row.text.strip() != parse_prompt(prompt.text).text.strip():
        raise Violation(f"{tag} is completed with another text: {row.text!r}")


def check_texts(reader: Reader, rows: Rows, counts: Counter[str]) -> None:
    """Check that what a reader has put together is what is stored."""
    for key, stored in rows.texts.items():
        if not stored.finished:
            raise Violation(f"the answer to {stored.tag} is stored and has no end")
        message = reader.view.messages.get(key)
        if message is not None and is_finished(message):
            if text_of(message) != stored.text:
                raise Violation(
                    f"the answer to {stored.tag} is {stored.text!r} on disk, and a reader"
                    f" has put together {text_of(message)!r}"
                )
            counts["texts compared"] += 1
        elif reader.view.resyncs:
            counts["texts to be read again after a resync"] += 1
        else:
            raise Violation(f"a reader was not shown the whole answer to {stored.tag}")
    lost = [
        key
        for key, message in reader.view.messages.items()
        if message["role"] == "assistant" and is_finished(message) and key not in rows.texts
    ]
    if lost:
        raise Violation(f"answers that a reader has seen and that are not stored: {lost}")


async def check_answers(shared: Round, reader: Reader, rows: Rows) -> None:
    """Check that any node gives the stored texts to whoever reads the sessions again."""
    for session in sorted({prompt.session for prompt in shared.prompts}):
        target = f"{shared.base}/sessions/{session}/messages"
        given = {m["id"]: m for m in await reader.tell("GET", target) if m["role"] == "assistant"}
        for key, message in given.items():
            if key not in rows.texts or text_of(message) != rows.texts[key].text:
                raise Violation(f"a node gives a text that is not the stored one: {message}")
    missing = [text.tag for text in rows.texts.values() if not text.tag]
    if missing:
        raise Violation("an answer is stored that belongs to no run")
