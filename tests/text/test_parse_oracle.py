"""Scripted answers through our parser and DeepSeek's. Where ours differs on purpose, the answer is
listed below with the reason."""

import json

import deepseek_recipe as recipe
import pytest

from relight.text.conversation import Tool
from relight.text.parse import Content, OutputParser, Reasoning, ToolCallArguments, ToolCallStart
from tests.text.answers import Answers

ANY_TOOL = (Tool("unused"),)
STAGES = {
    ("reasoning", False): recipe.ThinkingInitialStage.ReasoningStart,
    ("reasoning", True): recipe.ThinkingInitialStage.ReasoningContinuation,
    ("content", True): recipe.ThinkingInitialStage.ContentContinuation,
}


@pytest.fixture(scope="session", params=["DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash"])
def oracle(public_folder, request):
    """Tokens to (reasoning, content, calls, finish reason, reasoning tokens), by either model."""
    model = request.param
    tokenizer = recipe.Tokenizer.from_file(str(public_folder / "tokenizer.json"))

    def parse(ids, start, continued, limited):
        body = {"model": model, "messages": [{"role": "user", "content": "q"}]}
        if start != "reasoning" and not continued:
            body["thinking"] = {"type": "disabled"}
        request = recipe.ChatCompletionRequest(body).convert(recipe.ConversionOptions())
        processor = recipe.StreamProcessor(
            recipe.ChatCompletionRequest.chunk_generator(request, "id", "model"),
            recipe.ParsingOptions(
                parse_tool_calls=True,
                starts_in_tool_calls=start == "tools",
                thinking_initial_stage=STAGES.get((start, continued)),
            ),
            tokenizer,
        )
        response = recipe.ChatCompletionResponse("id", "model", 0, 1, 0)
        reason = recipe.InferenceFinishReason
        chunks = [recipe.InferenceChunk.ready(prompt_usage=recipe.PromptUsage(prompt_tokens=1))]
        chunks += [recipe.InferenceChunk.tokens([token]) for token in ids]
        chunks += [recipe.InferenceChunk.finish(reason.Length if limited else reason.Stop)]
        for chunk in chunks:
            for piece in processor.push(chunk):
                response.accumulate(piece)
        for piece in processor.finish():
            response.accumulate(piece)
        answer = json.loads(response.to_json())
        [choice] = answer["choices"]
        message = choice["message"]
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        details = answer["usage"].get("completion_tokens_details") or {}
        return (
            message.get("reasoning_content") or "",
            message["content"],
            [(call["name"], call["arguments"]) for call in calls],
            choice["finish_reason"],
            details.get("reasoning_tokens", 0),
        )

    return parse


def ours(tokenizer, ids, start, continued=False, limited=False):
    parser = OutputParser(tokenizer, start, ANY_TOOL, continued=continued)
    events = parser.feed(ids) + parser.finish(stopped=not limited)
    calls = []
    for event in events:
        if isinstance(event, ToolCallStart):
            calls.append((event.name, ""))
        elif isinstance(event, ToolCallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return (
        "".join(event.text for event in events if isinstance(event, Reasoning)),
        "".join(event.text for event in events if isinstance(event, Content)),
        calls,
        "length" if limited else "tool_calls" if parser.made_call else "stop",
        parser.reasoning_tokens,
    )


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize(
    ("start", "continued"),
    [
        ("reasoning", False),
        ("reasoning", True),
        ("content", False),
        ("content", True),
        ("tools", False),
    ],
)
def test_generated_answers_are_read_as_the_oracle_does(oracle, public, start, continued, limited):
    answers = Answers(f"{start} {continued} {limited}")
    for _ in range(100):
        text = answers.answer(start)
        ids = public.encode_raw(text)
        expected = oracle(ids, start, continued, limited)[:4]
        assert ours(public, ids, start, continued, limited)[:4] == expected, text


def test_an_answer_cut_anywhere_by_a_limit_is_read_as_the_oracle_does(oracle, public):
    answers = Answers("cut")
    for _ in range(20):
        ids = public.encode_raw(answers.answer("reasoning"))
        for end in range(len(ids)):
            found = ours(public, ids[:end], "reasoning", limited=True)
            if "\ufffd" in found[0] + found[1]:
                continue  # a character cut in half, which the oracle leaves out
            theirs = oracle(ids[:end], "reasoning", False, True)
            assert found[0] == theirs[0]
            assert found[1].rstrip() == theirs[1].rstrip()
            assert [name for name, _ in found[2]] == [name for name, _ in theirs[2]]


@pytest.mark.parametrize(
    ("text", "theirs", "expected"),
    [
        ("hmm</think>x", 2, 2),
        ("<b> 2 < 3</think>x", 7, 7),
        pytest.param("\n\nhmm\n\n</think>x", 2, 4, id="blank lines at the edges count too"),
    ],
)
def test_reasoning_tokens(oracle, public, text, theirs, expected):
    ids = public.encode_raw(text)
    assert oracle(ids, "reasoning", False, False)[4] == theirs
    assert ours(public, ids, "reasoning")[4] == expected


# Differences on purpose


def block(*calls):
    return "<｜DSML｜tool_calls>\n" + "\n".join(calls) + "\n</｜DSML｜tool_calls>"


def invoke(*parameters):
    return '<｜DSML｜invoke name="f">\n' + "\n".join(parameters) + "\n</｜DSML｜invoke>"


def parameter(value, string="true", name="x"):
    return f'<｜DSML｜parameter name="{name}" string="{string}">{value}</｜DSML｜parameter>'


OPEN_CALL = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'


@pytest.mark.parametrize(
    ("text", "theirs", "expected"),
    [
        pytest.param(
            "a<think>b</think>c",
            ("", "a<think>bc", [], "stop"),
            ("b", "ac", [], "stop"),
            id="<think> in content opens reasoning",
        ),
        pytest.param(
            "\n</think>\nc",
            ("", "\nc", [], "stop"),
            ("", "c", [], "stop"),
            id="a stray </think> is as if it were not there",
        ),
        pytest.param(
            "Text \n " + block(invoke(parameter("1"))),
            ("", "Text \n ", [("f", '{"x": "1"}')], "tool_calls"),
            ("", "Text", [("f", '{"x": "1"}')], "tool_calls"),
            id="all blanks before a block go, not newlines only",
        ),
        pytest.param(
            block(invoke()) + block(invoke()),
            ("", "", [("f", "{}")], "tool_calls"),
            ("", "", [("f", "{}"), ("f", "{}")], "tool_calls"),
            id="a second block counts",
        ),
        pytest.param(
            "a <｜DSML｜\nb",
            ("", "a ", [], "stop"),
            ("", "a <｜DSML｜\nb", [], "stop"),
            id="a marker that opens no tag is text",
        ),
        pytest.param(
            block(invoke(parameter("12,5", "false"))),
            ("", "", [("f", '{"x": 12,5}')], "tool_calls"),
            ("", "", [("f", '{"x": "12,5"}')], "tool_calls"),
            id="what is not JSON becomes a string",
        ),
        pytest.param(
            block(invoke(parameter(" 12\n", "false"))),
            ("", "", [("f", '{"x":  12\n}')], "tool_calls"),
            ("", "", [("f", '{"x": 12}')], "tool_calls"),
            id="blanks around JSON go",
        ),
        pytest.param(
            block(invoke('<｜DSML｜parameter name="x">12</｜DSML｜parameter>')),
            (
                *("", ""),
                [("f", '{"x">12</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>')],
                "tool_calls",
            ),
            ("", "", [("f", '{"x": 12}')], "tool_calls"),
            id="a parameter without the string attribute is JSON or a string",
        ),
        pytest.param(
            block(invoke('<｜DSML｜parameter string="true" name="x">v</｜DSML｜parameter>')),
            ("", "", [("f", "{}")], "tool_calls"),
            ("", "", [("f", '{"x": "v"}')], "tool_calls"),
            id="attributes in any order",
        ),
        pytest.param(
            block(invoke('{"city": "x"}')),
            ("", "", [("f", "{}")], "tool_calls"),
            ("", "", [("f", '{"city": "x"}')], "tool_calls"),
            id="an object instead of parameters",
        ),
        pytest.param(
            block(invoke(parameter("a </｜DSML｜q"))),
            ("", "", [("f", '{"x": "a "}')], "tool_calls"),
            ("", "", [("f", '{"x": "a </｜DSML｜q"}')], "tool_calls"),
            id="only its own closing tag ends a value",
        ),
        pytest.param(
            block(invoke('<｜DSML｜parameter name="x" string="true">v' + parameter("w", name="y"))),
            (
                *("", ""),
                [("f", '{"x": "v<｜DSML｜parameter name=\\"y\\" string=\\"true\\">w"}')],
                "tool_calls",
            ),
            ("", "", [("f", '{"x": "v", "y": "w"}')], "tool_calls"),
            id="the next parameter ends a value that was not closed",
        ),
        pytest.param(
            block(invoke(parameter("1"), parameter("1"))),
            ("", "", [("f", '{"x": "1", "x": "1"}')], "tool_calls"),
            ("", "", [("f", '{"x": "1"}')], "tool_calls"),
            id="an equal repetition goes",
        ),
        pytest.param(
            block(invoke(parameter("1", name='x"y'))),
            ("", "", [("f", '{"x"y": "1"}')], "tool_calls"),
            ("", "", [("f", '{"x\\"y": "1"}')], "tool_calls"),
            id="quotes in names are escaped",
        ),
        pytest.param(
            block(invoke(parameter("1", name="x y"))),
            ("", "", [("f", '{"x: "1"}')], "tool_calls"),
            ("", "", [("f", '{"x y": "1"}')], "tool_calls"),
            id="blanks in names stay",
        ),
        pytest.param(
            OPEN_CALL + '<｜DSML｜parameter name="x" string="true">abc',
            ("", "", [("f", '{"x": "abc')], "tool_calls"),
            ("", "", [("f", '{"x": "abc"}')], "stop"),
            id="a call left open is closed and does not count",
        ),
        pytest.param(
            "hi<｜end▁of▁sentence｜>",
            ("", "hi<｜end▁of▁sentence｜>", [], "stop"),
            ("", "hi", [], "stop"),
            id="EOS is no text",
        ),
    ],
)
def test_read_otherwise_on_purpose(oracle, public, text, theirs, expected):
    ids = public.encode_raw(text)
    assert oracle(ids, "content", False, False)[:4] == theirs
    assert ours(public, ids, "content")[:4] == expected


def test_a_first_think_marker_of_the_model_is_absorbed(oracle, public):
    ids = public.encode_raw("<think>hm</think>hi")
    assert oracle(ids, "reasoning", False, False)[:2] == ("<think>hm", "hi")
    assert ours(public, ids, "reasoning")[:2] == ("hm", "hi")


def test_a_value_of_a_repeated_parameter_is_written_again_as_the_oracle_does(oracle, public):
    ids = public.encode_raw(block(invoke(parameter("1"), parameter("2"))))
    assert ours(public, ids, "content") == oracle(ids, "content", False, False)
