"""Any tokens in any portions give the same pieces."""

import itertools
from collections.abc import Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from relight.base.types import Logprobs
from relight.session.pieces import Answer
from relight.session.pipeline import ChatPipeline, Pipeline, RawPipeline
from relight.text.conversation import Tool
from relight.text.detokenize import StopStrings
from tests.serve.fakes import CALL, TOKENIZER, tokens

FRAGMENTS = [
    *("think", "a < b", "STOP", "ST", "OP", "\n\n", "\n", " ", "é🙂", "</", "<", "{}", '"'),
    *("<think>", "</think>", "<｜DSML｜", "</｜DSML｜", "｜DSML｜", "invoke>", "tool_calls>\n"),
    *(CALL, CALL[:40], CALL[40:], "<｜User｜>", "<｜end▁of▁sentence｜>"),
]
ANSWERS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join).map(tokens)
NOISE = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30)
CUTS = st.lists(st.integers(1, 7), min_size=1)


def portions(ids: Sequence[int], sizes: Iterable[int]) -> list[Sequence[int]]:
    out, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(ids):
            return out
        out.append(ids[at : at + size])
        at += size
    raise AssertionError("a cycle has no end")


def play(
    pipeline: Pipeline, parts: Iterable[Sequence[int]], stopped: bool, scored: bool = False
) -> tuple[object, ...]:
    answer = Answer()
    pieces = []
    for part in parts:
        pieces += pipeline.feed(part, [Logprobs(-t, ((t, -t),)) for t in part] if scored else ())
        if pipeline.stopped_by is not None:
            break
    else:
        pieces += pipeline.finish(stopped=stopped)
    for piece in pieces:
        answer.add(piece)
    calls = [(call.name, call.arguments) for call in answer.calls]
    open_calls = [(call.name, call.arguments) for call in answer.started.values()]
    return (
        answer.reasoning,
        answer.content,
        calls,
        open_calls,
        pipeline.called,
        pipeline.stopped_by,
        answer.scores,
    )


def chat(
    start: str, tools: bool, stops: Sequence[str], parallel: bool = True, min_tokens: int = 0
) -> Pipeline:
    return ChatPipeline(
        TOKENIZER,
        "reasoning" if start == "reasoning" else "content",
        (Tool("get_weather"),) if tools else (),
        StopStrings(stops),
        min_tokens,
        continued=False,
        parallel=parallel,
        new_id=lambda: "0" * 32,
    )


@settings(max_examples=300, deadline=None)
@given(
    ids=ANSWERS | NOISE,
    cuts=CUTS,
    start=st.sampled_from(["reasoning", "content"]),
    tools=st.booleans(),
    stops=st.sampled_from([(), ("STOP",), ("a < b", "\n\n")]),
    parallel=st.booleans(),
    stopped=st.booleans(),
)
def test_a_chat_answer_is_the_same_in_any_portions(
    ids: list[int],
    cuts: list[int],
    start: str,
    tools: bool,
    stops: Sequence[str],
    parallel: bool,
    stopped: bool,
) -> None:
    whole = play(chat(start, tools, stops, parallel), [ids], stopped)
    assert play(chat(start, tools, stops, parallel), portions(ids, cuts), stopped) == whole
    assert "STOP" not in str(whole[1]) or "STOP" not in stops


@settings(max_examples=300, deadline=None)
@given(
    ids=ANSWERS | NOISE,
    cuts=CUTS,
    start=st.sampled_from(["reasoning", "content"]),
    tools=st.booleans(),
    stops=st.sampled_from([(), ("STOP",), ("a < b", "\n\n")]),
    min_tokens=st.integers(0, 30),
    stopped=st.booleans(),
)
def test_scores_are_the_same_in_any_portions_and_change_no_text(
    ids: list[int],
    cuts: list[int],
    start: str,
    tools: bool,
    stops: Sequence[str],
    min_tokens: int,
    stopped: bool,
) -> None:
    def made(parts: Iterable[Sequence[int]], scored: bool) -> tuple[object, ...]:
        pipeline = chat(start, tools, stops, min_tokens=min_tokens)
        return play(pipeline, parts, stopped, scored)

    whole = made([ids], True)
    assert made(portions(ids, cuts), True) == whole
    assert made(portions(ids, cuts), False)[:-1] == whole[:-1]
    scores = whole[-1]
    assert isinstance(scores, list)
    left = iter(ids)
    assert all(scored.token.id in left for scored in scores), "a part of the tokens, in order"


@settings(max_examples=200, deadline=None)
@given(ids=ANSWERS | NOISE, cuts=CUTS, stops=st.sampled_from([(), ("STOP",), ("é",)]))
def test_raw_text_is_the_same_in_any_portions(
    ids: list[int], cuts: list[int], stops: Sequence[str]
) -> None:
    whole = play(RawPipeline(TOKENIZER, StopStrings(stops)), [ids], True)
    parts = portions(ids, cuts)
    assert play(RawPipeline(TOKENIZER, StopStrings(stops)), parts, True) == whole
