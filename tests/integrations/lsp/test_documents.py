"""A server knows files as they are, and is given the time it needs and no more (H7)."""

from pathlib import Path

import pytest
import trio
from attrs import define, field

from crush_trio.integrations.lsp import documents as lsp_documents
from crush_trio.integrations.lsp.diagnostics import MAX_SHOWN, format_diagnostics
from crush_trio.integrations.lsp.documents import Documents
from crush_trio.integrations.lsp.session import sync_of

A, B = Path("/w/a.py"), Path("/w/b.py")


@define(eq=False)
class Told:
    messages: list = field(factory=list)

    def __call__(self, method, params):
        self.messages.append((method.partition("/")[2], params))

    def methods(self):
        return [method for method, _ in self.messages]


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def documents(told):
    return Documents(told)


def problem(line=0, severity=1, message="bad", **more):
    place = {"line": line, "character": 0}
    return {
        "range": {"start": place, "end": place},
        "severity": severity,
        "message": message,
    } | more


def about(path, *problems, **more):
    return {"uri": path.as_uri(), "diagnostics": list(problems)} | more


# ── What it is told ─────────────────────────────────────────────────────────────────────────────


def test_a_file_is_opened_once_and_then_changed_only_if_it_is_different(documents, told):
    assert documents.show(A, "one")
    assert not documents.show(A, "one")
    assert documents.show(A, "two")
    assert told.messages == [
        (
            "didOpen",
            {
                "textDocument": {
                    "uri": "file:///w/a.py",
                    "languageId": "python",
                    "version": 1,
                    "text": "one",
                }
            },
        ),
        (
            "didChange",
            {
                "textDocument": {"uri": "file:///w/a.py", "version": 2},
                "contentChanges": [{"text": "two"}],
            },
        ),
    ]


def test_a_save_is_told_as_a_change_of_the_file_too(documents, told):
    documents.show(A, "one")
    documents.save(A)
    documents.show(A, "two")
    documents.save(A)
    watched = [params["changes"][0]["type"] for name, params in told.messages if "Watched" in name]
    assert watched == [1, 2]
    assert told.methods().count("didSave") == 2


def test_the_file_that_was_not_used_longest_is_closed(documents, told, monkeypatch):
    monkeypatch.setattr(lsp_documents, "MAX_OPEN", 2)
    documents.show(A, "")
    documents.show(B, "")
    documents.show(A, "")
    documents.show(Path("/w/c.py"), "")
    closed = [params for name, params in told.messages if name == "didClose"]
    assert closed == [{"textDocument": {"uri": B.as_uri()}}]
    assert documents.show(B, "")


@pytest.mark.parametrize(
    ("sync", "expected"),
    [
        (None, (False, False)),
        (0, (False, False)),
        (1, (True, True)),
        (2, (True, True)),
        ({"change": 2, "save": {"includeText": False}}, (True, True)),
        ({"change": 1}, (True, False)),
        ({"openClose": True}, (False, False)),
    ],
)
def test_a_server_is_told_what_it_wants_to_be_told(sync, expected):
    assert sync_of({"textDocumentSync": sync}) == expected


# ── What it says ────────────────────────────────────────────────────────────────────────────────


def test_what_it_says_replaces_what_it_said(documents):
    documents.receive_diagnostics(about(A, problem(), problem()))
    documents.receive_diagnostics(about(B, problem()))
    assert documents.count == 3
    documents.receive_diagnostics(about(A))
    assert documents.count == 1
    assert list(documents.diagnostics()) == [B.as_uri()]


def test_a_word_about_an_older_text_does_not_count(documents):
    documents.show(A, "one")
    documents.show(A, "two")
    documents.receive_diagnostics(about(A, problem(), version=1))
    assert (documents.count, documents.updates) == (0, 0)
    documents.receive_diagnostics(about(A, problem(), version=2))
    assert documents.count == 1


def test_only_so_much_of_what_it_says_is_kept(documents, monkeypatch):
    monkeypatch.setattr(lsp_documents, "MAX_TOTAL", 700)
    long = problem(message="x" * 9999, data={"secret": "y" * 9999}, code={"deep": []})
    documents.receive_diagnostics(about(A, *[long] * 9000))
    documents.receive_diagnostics(about(B, *[long] * 9000))
    assert documents.count == 700
    [first, *_] = documents.diagnostics()[A.as_uri()]
    assert len(first["message"]) == 2000
    assert first.keys() == {"range", "severity", "message"}


@pytest.mark.parametrize(
    "params",
    [None, [], {}, {"uri": 3}, {"uri": "file:///w/a.py", "diagnostics": 3}],
)
def test_nonsense_is_nothing(documents, params):
    documents.receive_diagnostics(params)
    assert documents.count == 0


@pytest.mark.parametrize(
    "nonsense",
    [{}, {"range": 3}, {"range": {"start": 3}}, {"severity": "x", "message": 3, "range": {}}],
)
def test_a_diagnostic_that_lacks_things_can_be_shown(documents, nonsense):
    documents.receive_diagnostics(about(A, nonsense))
    assert "error: a.py:1:1:" in format_diagnostics(
        [documents.diagnostics()], A.as_uri(), Path("/w")
    )


# ── When it has said everything ─────────────────────────────────────────────────────────────────


async def says(documents, *times):
    for time in times:
        await trio.sleep_until(time)
        documents.receive_diagnostics(about(A, problem(message=str(time))))


async def settling(documents, *times):
    """Return when waiting ends if the server speaks at those times."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(says, documents, *times)
        with trio.move_on_after(5):
            await documents.settled()
        ended = trio.current_time()
        nursery.cancel_scope.cancel()
    return pytest.approx(ended)


@pytest.mark.item("H7")
@pytest.mark.parametrize(
    ("spoken", "end"),
    [
        ((), 1.0),
        ((0.5,), 0.8),
        ((0.9, 1.1, 1.3), 1.6),
        ((0.9, 1.25), 1.2),
        ((1.1,), 1.0),
        (tuple(n / 5 for n in range(1, 50)), 5.0),
    ],
)
async def test_silence_ends_the_waiting_at_once_or_after_a_word(
    autojump_clock, documents, spoken, end
):
    assert await settling(documents, *spoken) == end


@pytest.mark.item("H7")
async def test_a_word_that_came_before_the_waiting_counts(autojump_clock, documents):
    documents.show(A, "text")
    documents.receive_diagnostics(about(A, problem()))
    await documents.settled(A.as_uri())
    assert trio.current_time() == pytest.approx(0.3)


@pytest.mark.item("H7")
async def test_work_that_a_server_reports_is_waited_for_and_said(autojump_clock, documents):
    def work(token, kind, **more):
        documents.receive_progress({"token": token, "value": {"kind": kind, **more}})

    documents.show(A, "one")
    for nonsense in (None, {}, {"token": []}, {"token": 1, "value": 3}):
        documents.receive_progress(nonsense)
    work("x", "report", title="never begun")
    assert documents.doubt(A.as_uri()) == "has reported nothing yet and may still be loading"
    work("x", "begin", title="Loading", message="a\nb")
    work(2, "begin")
    assert documents.doubt() == "is still loading (Loading: a b)"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(documents.settled, A.as_uri())
        await trio.sleep(20)
        work("x", "end")
        await trio.sleep(20)
        work(2, "end")
    assert trio.current_time() == pytest.approx(41)  # FIRST_WAIT after the work
    assert documents.doubt() == "has reported nothing yet and may still be loading"
    await trio.sleep(30)
    assert documents.doubt() == ""  # a server without diagnostics


@pytest.mark.item("H7")
async def test_a_server_that_always_reports_is_waited_for_until_it_does(autojump_clock, documents):
    for version, text in enumerate(("one", "two"), 1):
        documents.show(A, text)
        documents.receive_diagnostics(about(A, version=version))
    documents.show(A, "three")
    with trio.move_on_after(5) as limit:
        await documents.settled(A.as_uri())
    assert limit.cancelled_caught
    assert documents.doubt(A.as_uri()) == "has not reported on this text yet"
    documents.receive_diagnostics(about(A, version=3))
    assert documents.doubt(A.as_uri()) == ""


def test_what_was_asked_for_and_what_was_published_stand_beside_each_other(documents):
    documents.receive_diagnostics(about(A, problem(message="published")))
    documents.receive_diagnostics(about(A, problem(message="asked")), asked=True)
    said = [each["message"] for each in documents.diagnostics()[A.as_uri()]]
    assert (said, documents.count) == (["published", "asked"], 2)
    documents.receive_diagnostics(about(A), asked=True)
    assert documents.count == 1


# ── How it is shown ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H7")
def test_errors_come_first_ten_of_each_block_are_shown_and_all_are_counted():
    said = {
        A.as_uri(): tuple(
            problem(line, 2 if line < 11 else 1, f"m{line}", source="ruff", code="E1")
            for line in range(12)
        ),
        B.as_uri(): (problem(3, 4, "a hint\nin two lines"),),
    }
    blocks = format_diagnostics([said], A.as_uri(), Path("/w")).split("\n\n")
    here, elsewhere, summary = (block.split("\n") for block in blocks)
    assert here[:3] == [
        "Diagnostics of this file:",
        "error: a.py:12:1: m11 (ruff E1)",
        "warning: a.py:1:1: m0 (ruff E1)",
    ]
    assert len(here) == MAX_SHOWN + 2
    assert here[-1] == "(2 more)"
    assert elsewhere == ["Diagnostics of other files:", "hint: b.py:4:1: a hint in two lines"]
    assert summary == ["In all: 1 error, 11 warnings, 1 hint."]


def test_there_is_no_report_of_nothing():
    assert format_diagnostics([{}, {}], A.as_uri(), Path("/w")) == ""


def test_what_two_servers_say_alike_is_said_once():
    said = {A.as_uri(): (problem(),)}
    assert format_diagnostics([said, said], A.as_uri(), Path("/w")).endswith("In all: 1 error.")
