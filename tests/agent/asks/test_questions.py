"""Questions: what a model may ask, who answers, and what it reads then."""

from functools import partial

import orjson
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.agent.asks.questions import (
    CANCELLED,
    SKIPPED,
    UNASKABLE,
    QuestionTool,
    answers_text,
)
from crush_trio.testing.explore import explore
from crush_trio.tools.base import INVALID_JSON
from crush_trio.wire.asks import (
    Choice,
    Question,
    QuestionRequest,
    QuestionResponse,
    QuestionType,
)
from crush_trio.wire.ids import NO_ASK, AskId, QuestionId, SessionId, ToolCallId
from tests.agent.asking import Office

CHOICES = [{"id": "pg", "label": "Postgres"}, {"id": "sl", "label": "SQLite"}]
YES_NO = {"type": "yes_no", "question": "Go on?", "description": "It takes an hour."}
SINGLE = {
    "id": "db",
    "type": "single_choice",
    "question": "Which database?",
    "description": "All data goes there.",
    "choices": CHOICES,
}
FIRST = AskId("ask-1")


def asking(*questions, **more):
    return {"questions": list(questions or (YES_NO,)), **more}


def response(question, **more):
    return QuestionResponse(request_id=QuestionId(question), **more)


async def shown(arguments):
    """Return what a person is shown, or the error that the model gets instead."""
    office = Office()
    async with trio.open_nursery() as nursery:
        call = office.question(nursery, arguments)
        await wait_all_tasks_blocked()
        found = office.questions.pending
        nursery.cancel_scope.cancel()
    if call.result is not None:
        assert (office.told, office.opened(), found) == ([], [], ())
        assert not call.error.result.stop_turn
        return call.result
    [request] = found
    return request


# ── What a model writes ─────────────────────────────────────────────────────────────────────────


async def test_a_question_is_shown_as_it_was_asked():
    request = await shown(asking(SINGLE, confirm_title="Sure?"))
    assert request == QuestionRequest(
        id=FIRST,
        session_id=SessionId("s"),
        tool_call_id=ToolCallId("c1"),
        confirm_title="Sure?",
        questions=(
            Question(
                id=QuestionId("db"),
                type=QuestionType.SINGLE_CHOICE,
                question="Which database?",
                description="All data goes there.",
                choices=(Choice(id="pg", label="Postgres"), Choice(id="sl", label="SQLite")),
            ),
        ),
    )


async def test_choices_that_a_question_has_no_use_for_are_left_out():
    request = await shown(asking({**YES_NO, "choices": CHOICES}))
    assert request.questions[0].choices == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", INVALID_JSON),
        ("[]", "the arguments are not a JSON object"),
        ("{}", "questions is required"),
        ('{"questions": "["}', "invalid arguments: questions: expected a list, got a string"),
        ('{"questions": ["x"]}', "invalid arguments: questions[0]: expected an object"),
        ('{"questions": [{"type": "poll"}]}', "questions[0].type: unknown value 'poll'"),
        ('{"questions": [{"options": 3}]}', "questions[0].type: unknown value ''"),
    ],
)
async def test_arguments_that_cannot_be_read_are_the_model_s_mistake(text, error):
    assert error in await shown(text)


async def test_two_questions_must_not_share_an_id():
    assert await shown(asking(SINGLE, SINGLE)) == "two questions have the same id"
    assert len((await shown(asking(YES_NO, YES_NO))).questions) == 2


async def test_a_run_that_no_person_talks_to_cannot_ask():
    office = Office()
    async with trio.open_nursery() as nursery:
        call = office.question(nursery, asking(), interactive=False)
    assert (call.result, office.told) == (UNASKABLE, [])
    assert not call.error.result.stop_turn


def test_the_tool_describes_itself():
    tool = QuestionTool(Office().questions)
    assert "one to five questions" in tool.description
    item = tool.parameters["properties"]["questions"]["items"]
    assert item["required"] == ["type", "question", "description"]
    assert item["properties"]["type"]["enum"] == [kind.value for kind in QuestionType]
    assert orjson.dumps(tool.parameters)


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


REQUEST = QuestionRequest(
    id=AskId("b"),
    session_id=SessionId("s"),
    tool_call_id=ToolCallId("c"),
    questions=(
        Question(id=QuestionId("go"), type=QuestionType.YES_NO, question="Go on?"),
        Question(
            id=QuestionId("db"),
            type=QuestionType.MULTI_CHOICE,
            question="Which?",
            choices=(Choice(id="pg", label="Postgres"), Choice(id="sl", label="SQLite")),
        ),
    ),
)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (response("go", yes=True), "User answered: yes"),
        (response("go", yes=False), "User answered: no"),
        (response("go"), SKIPPED),
        (response("go", fill_in_text="maybe"), "User provided: maybe"),
        (response("go", fill_in_text=""), SKIPPED),
        (response("db", selected_ids=("pg", "sl")), 'User selected: ["pg","sl"]'),
        (
            response("db", selected_ids=("pg",), fill_in_text="but new", notes={"pg": "v16"}),
            'User selected: ["pg"]\nUser provided: but new\n\nNotes:\n- [pg]: v16',
        ),
        (response("db", notes={"pg": "v16", "sl": ""}), f"{SKIPPED}\n\nNotes:\n- [pg]: v16"),
        (response("go", yes=True, notes={"": "soon"}), "User answered: yes\n\nNotes:\n- soon"),
        (response("db", yes=True), SKIPPED),
    ],
)
def test_each_kind_of_answer_has_its_words(answer, text):
    go, db = (text if answer.request_id == each else SKIPPED for each in ("go", "db"))
    assert answers_text(REQUEST, (answer,)) == f"Q1: Go on?\n{go}\n\nQ2: Which?\n{db}"


def test_answers_stand_in_the_order_of_the_questions():
    answers = (response("db", selected_ids=("pg",)), response("elsewhere", yes=True))
    assert answers_text(REQUEST, answers) == (
        f'Q1: Go on?\n{SKIPPED}\n\nQ2: Which?\nUser selected: ["pg"]'
    )


async def two_batches(nursery, office):
    calls = []
    for number in (1, 2):
        question = {**SINGLE, "id": f"q{number}"}
        calls.append(office.question(nursery, asking(question), f"c{number}"))
        await wait_all_tasks_blocked()
    return calls


@pytest.mark.item("L17")
async def test_an_answer_goes_to_the_batch_it_names():
    office = Office()
    async with trio.open_nursery() as nursery:
        first, second = await two_batches(nursery, office)
        later = office.questions.pending[1].id
        assert office.questions.answer(later, (response("q2", selected_ids=("sl",)),))
        await wait_all_tasks_blocked()
        assert (first.result, second.result) == (None, 'Q1: Which database?\nUser selected: ["sl"]')
        assert not office.questions.cancel(later)
        assert office.questions.cancel()
    assert first.result == CANCELLED
    assert first.error.result.by_person, "the answer of the run does not repeat it"


@pytest.mark.item("L17")
async def test_an_answer_without_an_id_goes_to_the_oldest_batch_that_has_its_questions():
    office = Office()
    async with trio.open_nursery() as nursery:
        first, second = await two_batches(nursery, office)
        assert office.questions.answer(NO_ASK, (response("q2", selected_ids=("sl",)),))
        assert not office.questions.answer(NO_ASK, (response("q2", selected_ids=("sl",)),))
        await wait_all_tasks_blocked()
        assert (first.result is None, second.result is None) == (True, False)
        assert office.questions.answer(NO_ASK, ())
    assert first.result == f"Q1: Which database?\n{SKIPPED}"


async def test_a_batch_is_given_up_when_nobody_is_there_and_the_model_is_told():
    office = Office(patience=20.0)
    async with trio.open_nursery() as nursery:
        call = office.question(nursery, asking())
    assert call.result == "No answer: no client was connected for 20 seconds"
    assert call.error.result.stop_turn
    assert office.told == [f"questions {FIRST}", f"settled {FIRST}"]
    assert office.resolutions() == {FIRST: "unattended"}


async def test_a_batch_is_on_record_from_before_it_is_shown_until_it_is_settled():
    office = Office()
    async with trio.open_nursery() as nursery:
        office.question(nursery, asking())
        await wait_all_tasks_blocked()
        [row] = await office.store.pending_asks()
        assert (row.id, row.kind, row.run_id) == (FIRST, "question", "r")
        office.questions.answer(FIRST, ())
    assert office.resolutions() == {FIRST: "answered"}
    assert await office.store.pending_asks() == []


# ── Under every schedule ────────────────────────────────────────────────────────────────────────


async def answer_cancel_and_stop():
    """An answer, a refusal and the end of the run come together: one of them counts."""
    office, results = Office(), {}

    async def act(name, action):
        await trio.lowlevel.checkpoint()
        results[name] = action()

    async with trio.open_nursery() as nursery:
        call = office.question(nursery, asking())
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as actors:
            answer = partial(office.questions.answer, NO_ASK, ())
            actors.start_soon(act, "answered", answer)
            actors.start_soon(act, "refused", office.questions.cancel)
            actors.start_soon(act, "stopped", call.cancel)
    won = [name for name, resolved in results.items() if resolved]
    assert len(won) <= 1
    assert office.told == [f"questions {FIRST}", f"settled {FIRST}"]
    assert office.questions.pending == ()
    ended = {"answered": f"Q1: Go on?\n{SKIPPED}", "refused": CANCELLED, "stopped": None}
    assert call.result == ended[won[0] if won else "stopped"]
    return won[0] if won else "stopped"


def test_one_of_three_endings_counts_under_every_schedule(report_exploration):
    found = explore(answer_cancel_and_stop, deviations=3)
    report_exploration(found)
    assert set(found.outcomes) == {"answered", "refused", "stopped"}
    assert found.exhaustive
