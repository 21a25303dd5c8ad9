"""Messages, in every store: their order, their parts, and text that grows."""

import pytest
from attrs import evolve

from crush_trio.errors import MessageNotFound, SessionNotFound
from crush_trio.store.changes import (
    MessageDeleted,
    MessageFinished,
    PartPut,
    PartsCut,
    RunEnded,
    SessionDeleted,
    SessionEdited,
    TextAppended,
)
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    BinaryPart,
    FinishPart,
    FinishReason,
    ImageUrlPart,
    Message,
    ReasoningPart,
    Role,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.runs import RunState
from tests.store.stores import END, STOP, M, S, call, ids, message, run, session, text, thought

pytestmark = pytest.mark.real_clock

ONE_OF_EACH = (
    TextPart(text='a "quoted" line\nand \x00 another \u2028 é 😀'),
    ReasoningPart(thinking="hm", signature="sig", started_at=1, finished_at=2),
    ToolCallPart(id=ToolCallId("c"), name="bash", input='{"a":1}', type="function", finished=True),
    ToolResultPart(
        tool_call_id=ToolCallId("c"),
        name="bash",
        content="done",
        data="AAEC",
        mime_type="image/png",
        metadata='{"b":2}',
        is_error=True,
    ),
    ImageUrlPart(url="https://example.org/a.png", detail="high"),
    BinaryPart(path="a.png", mime_type="image/png", data=bytes(range(256))),
    ShellCommandPart(command="ls", output="a\nb", exit_code=-1),
    FinishPart(reason=FinishReason.CANCELLED, time=3, message="why", details="because"),
)


def put(index, part, at=100):
    return PartPut(message_id=M, index=index, part=part, at=at)


def append(index, content, at=100):
    return TextAppended(message_id=M, index=index, text=content, at=at)


async def parts(store):
    return (await store.message(M)).message.parts


async def test_a_message_is_read_back_as_it_was_written(openings):
    written = Message(
        id=M,
        role=Role.ASSISTANT,
        session_id=S,
        parts=ONE_OF_EACH,
        model="m1",
        provider="p1",
        created_at=100,
        updated_at=101,
        is_summary_message=True,
    )
    async with openings.open() as store:
        created = evolve(message("m"), message=written)
        await store.commit(session("s"), created)
        assert await store.messages(S) == [written]
    async with openings.open() as store:
        assert await store.messages(S) == [written]


@pytest.mark.parametrize("part", ONE_OF_EACH, ids=lambda part: part.kind)
async def test_a_part_of_any_kind_can_be_put(openings, part):
    async with openings.open() as store:
        await store.commit(session("s"), message("m"), put(0, part))
        assert await parts(store) == (part,)
        await store.commit(MessageFinished(message_id=M, at=100))
        assert await parts(store) == (part,)


@pytest.mark.item("L14")
async def test_messages_stand_in_the_order_in_which_they_came_not_in_that_of_their_times(openings):
    async with openings.open() as store:
        await store.commit(session("s"), session("t"))
        for name, at in (("c", 5), ("a", 5), ("d", 3), ("b", 5)):
            await store.commit(message(name, at=at), message(f"t{name}", session="t"))
        assert ids(await store.messages(S)) == ["c", "a", "d", "b"]
        await store.commit(MessageDeleted(id=MessageId("b")))
        await store.commit(message("e", at=1))
        assert ids(await store.messages(S)) == ["c", "a", "d", "e"]


async def test_an_unknown_session_has_no_messages(openings):
    async with openings.open() as store:
        assert await store.messages(S) == []
        assert await store.user_messages(S) == []
        assert await store.unfinished_messages(S) == []


async def test_a_conversation_begins_with_its_summary(openings):
    async with openings.open() as store:
        await store.commit(session("s"), session("t"), *(message(name) for name in "abc"))
        await store.commit(message("x", session="t"))
        assert ids((await store.conversation(S)).messages) == ["a", "b", "c"]
        await store.commit(SessionEdited(id=S, at=200, summary_message_id=MessageId("b")))
        said = await store.conversation(S)
        assert ids(said.messages) == ["b", "c"]
        assert said.session == await store.session(S)
        assert ids(await store.messages(S)) == ["a", "b", "c"]


async def test_a_conversation_whose_summary_is_gone_is_whole(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("a"), message("b"), message("c"))
        await store.commit(SessionEdited(id=S, at=200, summary_message_id=MessageId("b")))
        await store.commit(MessageDeleted(id=MessageId("b")))
        assert ids((await store.conversation(S)).messages) == ["a", "c"]


async def test_a_withdrawn_turn_is_shown_and_is_part_of_no_conversation(openings):
    async with openings.open() as store:
        view = evolve(run("r").run, state=RunState.CANCELLED, ended_at=1)
        await store.commit(
            session(),
            run("r"),
            message("r", text("do not"), run_id="r"),
            message("a", run_id="r"),
            message("b"),
            RunEnded(run=view, withdrawn=True),
        )
        assert ids(await store.messages(S)) == ["r", "a", "b"]
        assert ids((await store.conversation(S)).messages) == ["b"]


async def test_the_messages_of_a_run_stand_at_the_end_of_its_conversation(openings):
    async with openings.open() as store:
        await store.commit(
            session(),
            run("r"),
            message("a"),
            message("r", run_id="r"),
            message("late"),
            message("b", run_id="r"),
        )
        assert ids((await store.conversation(S)).messages) == ["a", "r", "late", "b"]
        assert ids((await store.conversation(S, RunId("r"))).messages) == ["a", "late", "r", "b"]


async def test_a_message_of_a_run_that_may_not_be_there_is_passed_over(openings):
    async with openings.open() as store:
        await store.commit(
            session(),
            run("r"),
            message("a", run_id="r", if_there=True),
            message("b", run_id="q", if_there=True),
            message("c", session="nowhere", if_there=True),
        )
        assert ids(await store.messages(S)) == ["a"]


async def test_an_unknown_session_has_no_conversation(openings):
    async with openings.open() as store:
        with pytest.raises(SessionNotFound):
            await store.conversation(S)


async def test_creating_a_message_again_changes_nothing(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("m", text("first")))
        await store.commit(message("m", text("second"), at=900))
        assert await parts(store) == (text("first"),)
        assert (await store.session(S)).message_count == 1
        assert (await store.session(S)).updated_at == 100


async def test_a_message_for_a_session_that_is_gone_is_refused_or_left_out(openings):
    async with openings.open() as store:
        await store.commit(message("m", if_there=True))
        with pytest.raises(MessageNotFound):
            await store.message(M)
        with pytest.raises(SessionNotFound):
            await store.commit(message("m"))


@pytest.mark.parametrize(
    "change",
    [
        put(0, text()),
        append(0, "x"),
        PartsCut(message_id=M, length=0, at=1),
        MessageFinished(message_id=M, at=1),
        MessageDeleted(id=M),
    ],
    ids=lambda change: type(change).__name__,
)
async def test_changing_an_unknown_message_is_refused(openings, change):
    async with openings.open() as store:
        await store.commit(session("s"))
        with pytest.raises(MessageNotFound, match="m"):
            await store.commit(change)


# ── Growing ─────────────────────────────────────────────────────────────────────────────────────


async def test_text_grows_by_what_is_appended(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("m", thought("ah"), text()))
        for piece in ("Hel", "", "lo ", "\x00é😀"):
            await store.commit(append(1, piece), append(0, "."))
        expected = (thought("ah...."), text("Hello \x00é😀"))
        assert await parts(store) == expected
        assert (await store.messages(S))[0].parts == expected
        await store.commit(MessageFinished(message_id=M, at=100))
        assert await parts(store) == expected


async def test_a_part_that_is_put_again_keeps_what_was_appended_to_it(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("m", thought()), append(0, "deep "))
        await store.commit(put(0, thought(signature="sig")), append(0, "thought"))
        assert await parts(store) == (thought("deep thought", "sig"),)


async def test_a_part_that_becomes_another_kind_does_not(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("m", text("a")), append(0, "b"))
        await store.commit(put(0, thought("c")))
        assert await parts(store) == (thought("c"),)
        await store.commit(put(0, text("d")), append(0, "e"))
        assert await parts(store) == (text("de"),)


async def test_what_was_finished_is_all_part_of_its_parts(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("m", text("a")), append(0, "b"))
        await store.commit(MessageFinished(message_id=M, at=100))
        await store.commit(append(0, "c"))
        assert await parts(store) == (text("abc"),)
        await store.commit(put(0, text("x")))
        assert await parts(store) == (text("xc"),)


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_only_text_and_reasoning_that_is_there_grows(openings, index):
    async with openings.open() as store:
        await store.commit(session("s"), message("m", call(), STOP))
        with pytest.raises(MessageNotFound, match=f"m has no text at part {index}"):
            await store.commit(append(index, "x"))
        assert await parts(store) == (call(), STOP)


async def test_parts_can_be_cut_off_with_the_text_appended_to_them(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("m", thought("a"), text("b"), call()))
        await store.commit(append(0, "1"), append(1, "2"))
        await store.commit(PartsCut(message_id=M, length=1, at=100))
        assert await parts(store) == (thought("a1"),)
        await store.commit(put(1, text()), append(1, "3"))
        assert await parts(store) == (thought("a1"), text("3"))
        await store.commit(PartsCut(message_id=M, length=0, at=100))
        assert await parts(store) == ()


async def test_parts_are_in_the_order_of_their_index(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("m"))
        for index in (10, 2, 0, 9):
            await store.commit(put(index, text(str(index))))
        assert await parts(store) == tuple(text(str(index)) for index in (0, 2, 9, 10))


async def test_half_characters_are_replaced(openings):
    async with openings.open() as store:
        await store.commit(session("s", title="\ud83d"), message("m", text("\ud83d\ude00\ud83d")))
        await store.commit(append(0, "\ude00"))
        assert await parts(store) == (text("😀\ufffd\ufffd"),)
        assert (await store.session(S)).title == "\ufffd"


# ── Times and endings ───────────────────────────────────────────────────────────────────────────


async def test_every_change_of_a_message_is_a_change_of_its_session(openings):
    async with openings.open() as store:
        await store.commit(session("s", at=1), message("m", at=2))
        for at, change in enumerate(
            (
                put(0, text(), 3),
                append(0, "x", 4),
                PartsCut(message_id=M, length=0, at=5),
                MessageFinished(message_id=M, at=6),
            ),
            3,
        ):
            await store.commit(change)
            assert (await store.message(M)).message.updated_at == at
            assert (await store.session(S)).updated_at == at
        await store.commit(put(0, text(), 2))
        assert (await store.message(M)).message.updated_at == 6
        assert (await store.message(M)).message.created_at == 2
        assert (await store.session(S)).updated_at == 6


async def test_a_message_is_unfinished_until_it_is_finished_or_comes_with_its_finish(openings):
    async with openings.open() as store:
        await store.commit(
            session("s"),
            message("m", text("a")),
            message("n", text("b"), STOP, role=Role.USER),
            message("o"),
        )
        assert ids(await store.unfinished_messages(S)) == ["m", "o"]
        assert not (await store.message(M)).finished
        assert (await store.message(MessageId("n"))).finished
        await store.commit(put(1, END))
        assert ids(await store.unfinished_messages(S)) == ["m", "o"]
        await store.commit(MessageFinished(message_id=M, at=100))
        assert ids(await store.unfinished_messages(S)) == ["o"]
        assert (await store.message(M)).finished


async def test_what_the_user_said_is_listed_from_the_newest(openings):
    async with openings.open() as store:
        await store.commit(session("s"), session("t"))
        for name, where, role, at in (
            ("a", "s", Role.USER, 10),
            ("b", "t", Role.USER, 30),
            ("c", "s", Role.ASSISTANT, 30),
            ("d", "s", Role.USER, 20),
            ("e", "t", Role.USER, 20),
            ("f", "s", Role.USER, 15),
        ):
            await store.commit(message(name, text(name), session=where, role=role, at=at))
        assert ids(await store.user_messages()) == ["b", "e", "d", "f", "a"]
        assert ids(await store.user_messages(S)) == ["f", "d", "a"]
        assert (await store.user_messages(SessionId("t")))[0].parts == (text("e"),)


async def test_deleting_messages_keeps_the_count(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("m", text()), message("n"), append(0, "x"))
        await store.commit(MessageDeleted(id=M))
        assert (await store.session(S)).message_count == 1
        assert ids(await store.messages(S)) == ["n"]
        await store.commit(message("m", text("new")))
        assert ids(await store.messages(S)) == ["n", "m"]
        assert await parts(store) == (text("new"),)


async def test_a_session_with_an_old_name_starts_empty(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("m", text("old")), append(0, "er"))
        await store.commit(SessionDeleted(id=S))
        await store.commit(session("s"), message("m", text("new")))
        assert await parts(store) == (text("new"),)
        assert (await store.session(S)).message_count == 1


async def test_a_message_cut_short_by_a_crash_has_all_text_that_was_stored(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("m", text("a")), append(0, "b"))
    async with openings.open() as store:
        assert [m.parts for m in await store.unfinished_messages(S)] == [(text("ab"),)]
