"""The prompt of V4.1: worked examples, whole conversations against DeepSeek's encoder, and each
difference on purpose by name."""

import json

import deepseek_recipe as recipe
import pytest

from relight.base.errors import BadCheckpoint, BadRequest
from relight.text.conversation import ToolCall
from relight.text.prompt import PromptEncoder
from relight.text.tokenizer import PUBLIC_IDS, SPELLING, Tokenizer
from tests.text.bodies import Bodies, conversation_of, oracle_of
from tests.text.prompts import PARIS, ROME, WEATHER, assistant, digest, render, result, system, user

EFFORT = (
    "<｜System｜>Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the "
    "reasoning)\n\n"
)


@pytest.fixture(scope="session")
def file(public_folder, tmp_path_factory):
    """The public vocabulary as V4.1 has it: the placeholder at its place is the system marker."""
    data = json.loads((public_folder / "tokenizer.json").read_text(encoding="utf-8"))
    for token in data["added_tokens"]:
        if token["id"] == PUBLIC_IDS.system:
            token["content"] = SPELLING["system"]
    path = tmp_path_factory.mktemp("v41") / "tokenizer.json"
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def v41(file):
    return PromptEncoder(Tokenizer.load(file.parent), "v4.1")


@pytest.fixture(scope="session")
def oracle(file):
    return oracle_of(file, recipe.DeepseekV41Encoding(), "DeepSeek-V4.1-Flash")


# Worked examples


def test_a_short_conversation_without_thinking(v41):
    prompt = render(v41, system("Be terse."), user("Hi"), thinking=False)
    assert prompt.ids == (0, 128799, 7153, 259, 10935, 16, 128803, 23166, 128804, 128822)
    assert digest(prompt) == "94d28d23dd5c240e6452ce6d784e345c"


def test_reasoning_of_earlier_turns_goes_without_tools(v41):
    messages = (system("Be terse."), user("1+1?"), assistant("2", "easy"), user("2+2?"))
    prompt = render(v41, *messages, effort="low")
    assert len(prompt.ids) == 47
    assert digest(prompt) == "6b636bddac54243580615d18f6bbfe39"


def test_tool_results_are_sorted_into_the_order_of_their_calls(v41):
    calls = assistant("", "need tools", PARIS, ROME)
    messages = (user("Weather?"), calls, result("b", "rain"), result("a", "sun"))
    prompt = render(v41, *messages, tools=(WEATHER,), effort="max")
    assert (len(prompt.text), len(prompt.ids)) == (1757, 404)
    assert digest(prompt) == "44f75a465c3d6263d8e898c3c3453cfe"


ROUND = (user("W?"), assistant("", "R1", PARIS), result("a", "sun"))


def test_all_reasoning_stays_with_tools(v41):
    messages = (*ROUND, assistant("Sunny.", "R2"), user("Thx"))
    prompt = render(v41, *messages, tools=(WEATHER,), effort="low")
    assert (len(prompt.text), len(prompt.ids)) == (1589, 362)
    assert digest(prompt) == "b2e762d7379a6673121ad1882a63e282"
    without = render(v41, *messages, effort="low")
    assert "<think>" not in without.text.removesuffix("<think>")


def test_a_later_system_message_stays_in_its_place(v41):
    messages = (system("A"), user("q1"), assistant("a1", "r1"), system("B"), user("q2"))
    prompt = render(v41, *messages, effort="low")
    assert len(prompt.ids) == 43
    assert digest(prompt) == "5a3ab72837d125359d82c5420af6ac58"


def test_a_required_call_is_opened_by_the_prompt(v41):
    options = {"tools": (WEATHER,), "tool_choice": "required", "thinking": False}
    prompt = render(v41, user("Weather in Oslo?"), **options)
    assert len(prompt.ids) == 279
    assert digest(prompt) == "58e959075e45a4c3323f0ab7f070466a"
    assert prompt.start == "tools"


def test_content_before_a_call_stays(v41):
    messages = (user("Weather?"), assistant("Let me see.", "R1", PARIS), result("a", "sun"))
    prompt = render(v41, *messages, tools=(WEATHER,), thinking=False)
    assert digest(prompt) == "26b01e0812fc57739d9c23fc9aa04b30"


def test_a_call_without_arguments_holds_an_empty_line(v41):
    prompt = render(v41, user("q"), assistant(None, None, ToolCall("a", "f")), result("a", "r"))
    assert 'name="f">\n<｜DSML｜ parameter name="arguments"' in prompt.text
    call = ToolCall("a", "f", "{}")
    prompt = render(v41, user("q"), assistant(None, None, call), result("a", "r"))
    assert '<｜DSML｜ invoke name="f">\n\n</｜DSML｜ invoke>' in prompt.text


def test_a_trailing_system_message_is_answered(v41):
    prompt = render(v41, user("Hi"), system("B"))
    assert prompt.text.endswith("<｜User｜>Hi<｜System｜>B<｜Assistant｜><think>")


@pytest.mark.parametrize(
    ("effort", "percent"),
    [
        (None, 75),
        ("minimal", 50),
        ("low", 50),
        ("medium", 75),
        ("high", 75),
        ("xhigh", 75),
        ("ultra", 100),
        ("max", 100),
        (1, 1),
        (37, 37),
        (100, 100),
        (0.5, 50),
        (0.001, 1),
        (64.0, 64),
    ],
)
def test_effort_is_a_number_in_the_prompt(v41, effort, percent):
    text = render(v41, user("q"), effort=effort).text
    assert text.startswith("<｜begin▁of▁sentence｜>" + EFFORT.format(percent) + "<｜User｜>q")


@pytest.mark.parametrize("effort", ["highest", "", 0, 101, -1, 1.5])
def test_an_unknown_effort_is_refused(v41, effort):
    with pytest.raises(BadRequest, match=r"reasoning_effort is .*\(v4\.1\)"):
        render(v41, user("q"), effort=effort)


def test_without_thinking_effort_is_not_read(v41):
    assert "Effort" not in render(v41, user("q"), effort="max", thinking=False).text


def test_client_text_spells_no_marker(v41):
    text = "".join(SPELLING.values())
    prompt = render(v41, system(text), user(text), system(text), thinking=False)
    assert [i for i in prompt.ids if i == PUBLIC_IDS.system] == [PUBLIC_IDS.system] * 2
    assert prompt.ids.count(PUBLIC_IDS.user) == 1


def test_the_vocabulary_of_v4_lacks_the_marker(public):
    assert public.special.system is None
    with pytest.raises(BadCheckpoint, match=r"<｜System｜>.*--encoding"):
        PromptEncoder(public, "v4.1")


# Against the oracle


def is_kept_reasoning(body):
    """Whether the body is one that the oracle reads otherwise on purpose: see below."""
    thinks = body["thinking"]["type"] == "enabled"
    has_tools = body.get("tools") and body.get("tool_choice") != "none"
    return thinks and not has_tools


def without_repeated_reminders(messages):
    """Of several in a row the oracle keeps the first only: see below."""
    roles = [None, *(message["role"] for message in messages)]
    reminder = "latest_reminder"
    return [
        m for m, before in zip(messages, roles, strict=False) if {m["role"], before} != {reminder}
    ]


@pytest.mark.parametrize("seed", range(8))
def test_generated_conversations_have_the_oracles_text_and_ids(oracle, v41, seed):
    bodies = Bodies(f"v4.1 {seed}")
    for _ in range(100):
        body = bodies.body()
        body["messages"] = without_repeated_reminders(body["messages"])
        if is_kept_reasoning(body):
            body["messages"].append({"role": "user", "content": "last"})
            if any(message.get("prefix") for message in body["messages"]):
                continue
        text, ids = oracle(body)
        prompt = v41.encode(conversation_of(body))
        assert prompt.text == text, body
        assert list(prompt.ids) == ids, body


def test_a_response_schema_is_written_as_the_oracle_does(oracle, v41):
    schema = {"type": "object", "properties": {"a": {"type": "string", "x": "é"}}}
    body = {
        "messages": [{"role": "user", "content": "q"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    }
    prompt = render(v41, user("q"), response_format="json_schema", response_schema=schema)
    assert prompt.text == oracle(body)[0]


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize(
    "last",
    [
        {"content": "Snow"},
        {"content": "Snow", "reasoning_content": "R"},
        {"content": ""},
        {"content": "", "reasoning_content": "R"},
    ],
)
def test_a_continued_answer_stays_open_as_the_oracles(oracle, v41, last, thinking):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "prefix": True, **last}]
    kind = "enabled" if thinking else "disabled"
    body = {"messages": messages, "thinking": {"type": kind}}
    assert v41.encode(conversation_of(body)).text == oracle(body)[0]


# Differences on purpose


def test_an_unfinished_round_of_calls_keeps_its_reasoning_though_the_oracle_drops_it(oracle, v41):
    def body(*more):
        function = {"name": "f", "arguments": "{}"}
        call = {"id": "a", "type": "function", "function": function}
        calls = {"role": "assistant", "content": "", "reasoning_content": "R", "tool_calls": [call]}
        messages = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "x", "reasoning_content": "old"},
            {"role": "user", "content": "r"},
            *(calls, {"role": "tool", "tool_call_id": "a", "content": "s"}),
        ]
        return {"messages": [*messages, *more]}

    ours, theirs = v41.encode(conversation_of(body())).text, oracle(body())[0]
    assert ours != theirs
    assert ours.replace("<think>R</think>", "</think>") == theirs
    assert "old" not in ours
    over = body({"role": "user", "content": "next"})
    assert v41.encode(conversation_of(over)).text == oracle(over)[0]


def test_a_system_message_between_call_and_result_comes_after_it(v41):
    calls = assistant("", None, PARIS, ROME)
    messages = (user("q"), calls, result("a", "1"), system("S"), result("b", "2"), user("r"))
    text = render(v41, *messages, thinking=False).text
    assert "<tool_result>2</tool_result><｜System｜>S<｜User｜>r<｜Assistant｜>" in text


def test_numbers_of_effort_are_taken_though_the_oracle_refuses_them(oracle):
    with pytest.raises((recipe.ConversionError, ValueError, TypeError)):
        oracle({"messages": [{"role": "user", "content": "q"}], "reasoning_effort": 37})


def test_every_reminder_stays_though_the_oracle_keeps_the_first_of_a_row(oracle, v41):
    reminders = [{"role": "latest_reminder", "content": text} for text in ("A", "B")]
    body = {"messages": [*reminders, {"role": "user", "content": "q"}]}
    both, first = "<｜latest_reminder｜>A<｜latest_reminder｜>B", "<｜latest_reminder｜>A"
    ours = v41.encode(conversation_of(body)).text
    assert ours.replace(both, first) == oracle(body)[0]
    assert both in ours
