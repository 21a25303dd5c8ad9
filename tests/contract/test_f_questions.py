"""Contract F.2: questions, as the model, the clients and the store see them.

Where the contract marks a weakness (L17) the better design is what is tested. The routes are in
`tests/server/routes/test_asks.py`, the words of each answer in `tests/agent/asks/test_questions.py`.
"""

import orjson
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.agent.asks.questions import CONFIRM_DESCRIPTION, CONFIRM_TITLE, QuestionTool
from crush_trio.wire.asks import QuestionResponse
from crush_trio.wire.ids import NO_ASK, AskId, QuestionId
from tests.agent.asking import Office

FIRST = AskId("ask-1")
YES_NO = {"id": "go", "type": "yes_no", "question": "Go on?", "description": "It takes an hour."}
CHOICES = [
    {"id": "pg", "label": "Postgres", "description": "a server"},
    {"id": "sl", "label": "SQLite"},
]
SINGLE = {**YES_NO, "id": "db", "type": "single_choice", "choices": CHOICES}
MULTI = {**SINGLE, "id": "dbs", "type": "multi_choice"}
FREE = {**YES_NO, "id": "why", "type": "free_text"}


def choices(*changes):
    return {**SINGLE, "choices": [{"id": "a", "label": "A"}, {"id": "b", "label": "B"}, *changes]}


async def shown(arguments):
    """Return the batch that a person is shown, or the error that the model gets instead."""
    office = Office()
    async with trio.open_nursery() as nursery:
        call = office.question(nursery, arguments)
        await wait_all_tasks_blocked()
        found = office.questions.pending
        nursery.cancel_scope.cancel()
    assert (call.result is None) is (len(found) == 1)
    if call.result is None:
        return found[0]
    assert (office.told, office.opened()) == ([], []), "something was published"
    return call.result


# ── What may be asked ───────────────────────────────────────────────────────────────────────────


@pytest.mark.item("F11")
@pytest.mark.parametrize(
    "questions",
    [
        [YES_NO],
        [YES_NO, SINGLE, MULTI, FREE, {**FREE, "id": "more"}],
        [{**YES_NO, "question": "x" * 240, "description": "x" * 600}],
        [
            choices(
                *({"id": f"c{n}", "label": "x" * 200, "description": "y" * 200} for n in range(3))
            )
        ],
    ],
    ids=["one", "five of all kinds", "longest texts", "longest choices"],
)
async def test_a_batch_within_the_limits_is_asked(questions):
    request = await shown({"questions": questions})
    assert [question.id for question in request.questions] == [q["id"] for q in questions]


@pytest.mark.item("F11")
@pytest.mark.parametrize(
    ("questions", "error"),
    [
        ([], "0 questions: ask at least 1 and at most 5"),
        ([{**FREE, "id": str(n)} for n in range(6)], "6 questions"),
        ([{**YES_NO, "question": ""}], "the text of question 1 is missing"),
        ([{**YES_NO, "question": "ü" * 121}], "the text of question 1 has 242 bytes"),
        ([YES_NO, {**FREE, "description": " "}], "the description of question 2 is missing"),
        ([{**YES_NO, "description": "x" * 601}], "the description of question 1 has 601 bytes"),
        ([{**SINGLE, "choices": []}], "question 1 has 0 choices: offer 2 to 5"),
        ([{**MULTI, "choices": CHOICES[:1]}], "question 1 has 1 choices: offer 2 to 5"),
        ([choices(*({"id": f"c{n}", "label": "x"} for n in range(4)))], "question 1 has 6 choices"),
        ([choices({"id": "a", "label": "again"})], "each choice of question 1 needs an id"),
        ([choices({"id": "", "label": "none"})], "each choice of question 1 needs an id"),
        ([choices({"id": "c", "label": ""})], "the label of choice c of question 1 is missing"),
        ([choices({"id": "c", "label": "x" * 201})], "the label of choice c of question 1 has 201"),
        (
            [choices({"id": "c", "label": "C", "description": "x" * 201})],
            "the description of choice c of question 1 has 201",
        ),
    ],
)
async def test_a_batch_that_breaks_a_limit_is_the_model_s_error_and_nobody_hears_of_it(
    questions, error
):
    assert (await shown({"questions": questions})).startswith(error)


@pytest.mark.item("F12")
async def test_missing_ids_are_made_up_and_several_questions_get_a_confirmation():
    nameless = {**YES_NO, "id": ""}
    request = await shown({"questions": [nameless, nameless]})
    assert len({request.id, *(question.id for question in request.questions)}) == 3
    assert all(question.id for question in request.questions)
    assert (request.confirm_title, request.confirm_description) == (
        CONFIRM_TITLE,
        CONFIRM_DESCRIPTION,
    )


@pytest.mark.item("F12")
async def test_a_confirmation_of_the_model_s_own_is_kept_and_one_question_needs_none():
    request = await shown({"questions": [YES_NO, FREE], "confirm_title": "Well?"})
    assert (request.confirm_title, request.confirm_description) == ("Well?", CONFIRM_DESCRIPTION)
    request = await shown({"questions": [YES_NO]})
    assert (request.confirm_title, request.confirm_description) == ("", "")


@pytest.mark.item("F17")
async def test_questions_may_be_the_json_of_themselves_and_choices_be_called_options():
    other = {key: value for key, value in SINGLE.items() if key != "choices"}
    text = orjson.dumps([{**other, "options": CHOICES}]).decode()
    request = await shown({"questions": text})
    assert [choice.id for choice in request.questions[0].choices] == ["pg", "sl"]


@pytest.mark.item("F17")
def test_the_tool_is_called_question():
    assert QuestionTool.name == "question"


# ── How it ends ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("F13")
@pytest.mark.parametrize("batch_id", [NO_ASK, FIRST])
async def test_the_first_answer_counts_and_everybody_is_told(batch_id):
    office = Office()
    responses = (QuestionResponse(request_id=QuestionId("go"), yes=True),)
    async with trio.open_nursery() as nursery:
        call = office.question(nursery, {"questions": [YES_NO]})
        await wait_all_tasks_blocked()
        assert office.questions.answer(batch_id, responses)
        assert office.told == [f"questions {FIRST}", f"settled {FIRST}"]
        assert not office.questions.answer(batch_id, responses)
        assert not office.questions.cancel(batch_id)
    assert call.result == "Q1: Go on?\nUser answered: yes"
    assert office.told == [f"questions {FIRST}", f"settled {FIRST}"]


@pytest.mark.item("F13")
async def test_where_nothing_waits_nothing_is_resolved():
    office = Office()
    assert not office.questions.answer(NO_ASK, ())
    assert not office.questions.answer(FIRST, ())
    assert not office.questions.cancel()
    assert not office.questions.cancel()
    assert office.told == []


@pytest.mark.item("F13", "L17")
async def test_a_late_answer_does_not_hit_the_next_question():
    office = Office()
    late = (QuestionResponse(request_id=QuestionId("go"), yes=True),)
    async with trio.open_nursery() as nursery:
        office.question(nursery, {"questions": [YES_NO]})
        await wait_all_tasks_blocked()
        assert office.questions.answer(NO_ASK, late)
        following = office.question(nursery, {"questions": [SINGLE]}, "c2")
        await wait_all_tasks_blocked()
        assert not office.questions.answer(NO_ASK, late)
        assert not office.questions.answer(FIRST, late)
        await wait_all_tasks_blocked()
        assert following.result is None
        nursery.cancel_scope.cancel()


@pytest.mark.item("F14")
async def test_a_person_who_refuses_to_answer_ends_the_turn():
    office = Office()
    async with trio.open_nursery() as nursery:
        call = office.question(nursery, {"questions": [YES_NO]})
        await wait_all_tasks_blocked()
        assert office.questions.cancel()
    result = call.error.result
    assert result.content == "User cancelled this question"
    assert (result.is_error, result.stop_turn) == (True, True)
    assert office.told == [f"questions {FIRST}", f"settled {FIRST}"]
    assert office.resolutions() == {FIRST: "cancelled"}


@pytest.mark.item("F14", "L15", "A20")
async def test_a_cancelled_run_withdraws_its_questions_and_everybody_is_told():
    office = Office()
    async with trio.open_nursery() as nursery:
        call = office.question(nursery, {"questions": [YES_NO]})
        await wait_all_tasks_blocked()
        call.cancel()
        assert not office.questions.answer(NO_ASK, ())
    assert call.result is None
    assert office.told == [f"questions {FIRST}", f"settled {FIRST}"]
    assert office.resolutions() == {FIRST: "withdrawn"}


@pytest.mark.item("F15")
async def test_the_model_reads_each_answer_below_its_question():
    office = Office()
    async with trio.open_nursery() as nursery:
        call = office.question(nursery, {"questions": [YES_NO, MULTI, FREE]})
        await wait_all_tasks_blocked()
        office.questions.answer(
            NO_ASK,
            (
                QuestionResponse(request_id=QuestionId("go"), yes=False),
                QuestionResponse(
                    request_id=QuestionId("dbs"),
                    selected_ids=("pg", "sl"),
                    fill_in_text="or none",
                    notes={"pg": "v16"},
                ),
            ),
        )
    assert call.result == (
        "Q1: Go on?\nUser answered: no\n\n"
        'Q2: Go on?\nUser selected: ["pg","sl"]\nUser provided: or none\n\nNotes:\n- [pg]: v16\n\n'
        "Q3: Go on?\nUser skipped this question"
    )


@pytest.mark.item("F16", "L17")
async def test_several_batches_may_wait_and_none_replaces_another():
    office = Office()
    async with trio.open_nursery() as nursery:
        first = office.question(nursery, {"questions": [YES_NO]}, "c1")
        await wait_all_tasks_blocked()
        second = office.question(nursery, {"questions": [SINGLE]}, "c2", session="t", run="r2")
        await wait_all_tasks_blocked()
        assert [batch.tool_call_id for batch in office.questions.pending] == ["c1", "c2"]
        first.cancel()
        await wait_all_tasks_blocked()
        assert [batch.tool_call_id for batch in office.questions.pending] == ["c2"]
        assert office.questions.cancel()
    assert second.result == "User cancelled this question"
