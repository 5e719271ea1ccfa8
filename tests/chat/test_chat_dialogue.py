"""What a turn sends, and what stays."""

import json

from relight.chat.dialogue import Dialogue, as_json, as_markdown
from relight.text.conversation import Message, ToolCall
from tests.chat.scripted import TOOL

CALLS = (ToolCall("id0", "weather", '{"city": "Paris"}'), ToolCall("id1", "weather", "{}"))


def roles(dialogue: Dialogue) -> list[str]:
    return [message.role for message in dialogue.ask().messages]


def test_earlier_reasoning_is_sent_back_with_tools_and_only_then() -> None:
    messages = [Message("user", "a"), Message("assistant", "b", "why")]
    plain, tooled = Dialogue(), Dialogue(tools=(TOOL,))
    for dialogue in (plain, tooled):
        dialogue.messages = list(messages)
        dialogue.say("c")
    assert [m.reasoning for m in plain.ask().messages] == [None, None, None]
    assert [m.reasoning for m in tooled.ask().messages] == [None, "why", None]
    assert plain.messages[:2] == messages


def test_the_system_message_stands_first_whenever_it_was_set() -> None:
    dialogue = Dialogue()
    dialogue.say("a")
    assert roles(dialogue) == ["user"]
    dialogue.system = "Be brief."
    assert roles(dialogue) == ["system", "user"]


def test_each_call_gets_a_result_before_the_model_goes_on() -> None:
    dialogue = Dialogue(tools=(TOOL,))
    dialogue.say("weather?")
    dialogue.messages.append(Message("assistant", "", "need it", CALLS))
    assert dialogue.open_call == CALLS[0]
    dialogue.say("sunny")
    assert not dialogue.answer_due
    assert dialogue.open_call == CALLS[1]
    dialogue.say("rain")
    assert dialogue.answer_due
    assert [m.tool_call_id for m in dialogue.messages[2:]] == ["id0", "id1"]
    assert dialogue.take_back() == "rain"
    assert dialogue.open_call == CALLS[1]


def test_a_saved_chat_has_every_word() -> None:
    dialogue = Dialogue(system="Be brief.")
    dialogue.messages = [Message("user", "weather — π?"), Message("assistant", "", "hm", CALLS)]
    system, user, assistant = json.loads(as_json(dialogue.whole))
    assert (system["content"], user["content"]) == ("Be brief.", "weather — π?")
    assert assistant["reasoning_content"] == "hm"
    assert assistant["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'
    text = as_markdown(dialogue.whole)
    assert "## system\n\nBe brief." in text
    assert "> hm" in text
    assert 'calls `weather({"city": "Paris"})`' in text
