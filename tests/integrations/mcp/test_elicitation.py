"""What an MCP server asks of the user becomes questions, and the answers fit its schema."""

import pytest
import trio
import trio.testing

from crush_trio.integrations.mcp.elicitation import put_to_user
from crush_trio.integrations.mcp.sdk import MOST_ASKED, OpenCall
from crush_trio.integrations.mcp.session import (
    CallContext,
    Elicitation,
    ElicitationAction,
    ElicitationAnswer,
)
from crush_trio.wire.asks import QuestionResponse

pytestmark = pytest.mark.item("I.4")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Full name", "description": "as in the passport"},
        "age": {"type": "integer"},
        "sure": {"type": "boolean"},
        "color": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]},
        "pets": {"type": "array", "items": {"anyOf": [{"const": "c", "title": "Cat"}]}},
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}]},
        "weight": {"type": "number"},
    },
    "required": ["name", "age"],
}


class Person:
    """Answers each batch of questions with the next answers, by id; None declines."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def __call__(self, questions):
        self.asked.append(questions)
        answers = self.answers.pop(0)
        if answers is None:
            return None
        return tuple(QuestionResponse(request_id=name, **said) for name, said in answers.items())


def text(said):
    return {"fill_in_text": said}


async def test_each_property_is_a_question_and_the_answers_have_its_type():
    person = Person(
        {
            "name": text(" Ada "),
            "age": text("36"),
            "sure": {"yes": False},
            "color": {"selected_ids": ("g",)},
            "pets": {"selected_ids": ("c", "unknown")},
            "size": {"selected_ids": ("s",)},
        }
    )
    answer = await put_to_user("desk", Elicitation(message="Who?", schema=SCHEMA), person)
    assert answer.action is ElicitationAction.ACCEPT
    assert answer.content == {
        "name": "Ada",
        "age": 36,
        "sure": False,
        "color": "g",
        "pets": ["c"],
        "size": "s",
    }
    [questions] = person.asked
    assert [each.type.value for each in questions] == [
        *("free_text", "free_text", "yes_no"),
        *("single_choice", "multi_choice", "single_choice", "free_text"),
    ]
    assert questions[0].question == "desk (MCP server): Full name: Who?"
    assert questions[0].description == "as in the passport"
    assert [choice.label for choice in questions[3].choices] == ["Red", "Green"]


async def test_what_does_not_fit_is_asked_again_with_the_reason():
    person = Person({"name": text("Ada"), "age": text("old")}, {"age": text("36")})
    answer = await put_to_user("desk", Elicitation(message="Who?", schema=SCHEMA), person)
    assert answer.content == {"name": "Ada", "age": 36}
    [again] = person.asked[1]
    assert (again.id, again.description) == ("age", "A number is expected, not 'old'.")


async def test_a_server_cannot_push_its_name_out_of_a_question():
    properties = {name: {"type": "string", "title": "Security check. " * 99} for name in "ab"}
    person = Person({})
    await put_to_user("desk", Elicitation(message="", schema={"properties": properties}), person)
    [questions] = person.asked
    assert all(each.question.startswith("desk (MCP server): Security") for each in questions)


@pytest.mark.parametrize(
    "properties",
    [
        {str(number): {"type": "string"} for number in range(21)},
        {"one": {"type": "string", "enum": [str(number) for number in range(101)]}},
    ],
)
async def test_a_form_without_end_is_not_asked(properties):
    person = Person({})
    asked = Elicitation(message="Who?", schema={"properties": properties})
    assert (await put_to_user("desk", asked, person)).action is ElicitationAction.CANCEL
    assert person.asked == []


async def test_a_number_must_be_finite():
    person = Person({"n": text("inf")}, {"n": text("nan")}, {"n": text("1.5")})
    asked = Elicitation(message="", schema={"properties": {"n": {"type": "number"}}})
    assert (await put_to_user("desk", asked, person)).content == {"n": 1.5}
    [again] = person.asked[1]
    assert again.description == "A finite number is expected, not 'inf'."


async def test_a_call_asks_a_few_things_at_once_and_the_rest_is_cancelled():
    asked, asking = [], trio.Event()

    async def person(elicitation):
        asked.append(elicitation)
        await asking.wait()
        return ElicitationAnswer(action=ElicitationAction.ACCEPT)

    answers = []
    async with trio.open_nursery() as server, trio.open_nursery() as caller:
        call = OpenCall(CallContext(elicit=person), caller)

        async def elicit():
            answers.append((await call.ask(Elicitation(message="?"))).action)

        for _ in range(MOST_ASKED * 4):
            server.start_soon(elicit)
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked) == MOST_ASKED
        assert answers == [ElicitationAction.CANCEL] * MOST_ASKED * 3
        asking.set()
    assert answers.count(ElicitationAction.ACCEPT) == MOST_ASKED


@pytest.mark.parametrize(
    ("said", "action"), [({"": {"yes": True}}, "accept"), ({}, "decline"), (None, "cancel")]
)
async def test_a_page_to_visit_is_a_question_of_yes_or_no(said, action):
    person = Person(said)
    asked = Elicitation(message="Log in", url="https://example.test/login")
    answer = await put_to_user("desk", asked, person)
    assert (answer.action.value, answer.content) == (action, {})
    [[question]] = person.asked
    assert (question.type.value, question.description) == ("yes_no", asked.url)


async def test_without_a_person_the_server_is_told_that_it_was_cancelled():
    asked = Elicitation(message="Who?", schema=SCHEMA)
    assert (await put_to_user("desk", asked, None)).action is ElicitationAction.CANCEL


async def test_texts_of_a_server_are_bounded_and_have_no_control_characters():
    person = Person(None)
    asked = Elicitation(message="x\x1b[2J" + "y" * 9000, schema=SCHEMA)
    await put_to_user("desk", asked, person)
    for question in person.asked[0]:
        assert question.question.isprintable()
        assert len(question.question.encode()) <= 240
