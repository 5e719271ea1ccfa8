"""An answer is judged alike however its bytes are cut, and only a whole one is a success."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.sse import EventSplitter
from relight.bench.http import Whole
from relight.bench.record import Failure
from relight.bench.stream import Stream, is_looping


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def choice(finish: str | None = None, **delta: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


USAGE = event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 3})
DONE = b"data: [DONE]\n\n"
PRELUDE = choice(role="assistant", content="")
WHOLE = [
    PRELUDE,
    b": keep-alive\n\n",
    choice(reasoning="why"),
    choice(reasoning_content="so"),
    choice(content="答"),
    choice(finish="length"),
    USAGE,
    DONE,
]


def judged(data: list[bytes], wanted: int | None = 3) -> Stream:
    """Each piece arrives a second after the one before it."""
    stream = Stream(wanted)
    stream.headers(200, "text/event-stream; charset=utf-8", 0.0)
    for second, piece in enumerate(data, start=1):
        stream.body(piece, float(second))
    stream.end(float(len(data) + 1))
    return stream


def test_a_whole_answer_is_a_success_with_its_times() -> None:
    stream = judged(WHOLE)
    assert (stream.failure, stream.error) == (None, "")
    assert [moment for moment, _ in stream.chunks] == [3.0, 4.0, 5.0]
    assert stream.t_first_answer == 5.0
    assert stream.text == "whyso答"


@given(st.lists(st.integers(0, len(b"".join(WHOLE)))), st.booleans())
def test_any_cut_of_the_bytes_gives_the_same_answer(cuts: list[int], crlf: bool) -> None:
    data = b"".join(WHOLE)
    if crlf:
        data = data.replace(b"\n", b"\r\n")
    places = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    stream = judged([data[a:b] for a, b in itertools.pairwise(places)])
    assert stream.failure is None
    assert (len(stream.chunks), stream.text, stream.finish) == (3, "whyso答", "length")


@pytest.mark.parametrize("missing", range(len(WHOLE)))
def test_what_an_answer_cannot_lack(missing: int) -> None:
    stream = judged(WHOLE[:missing] + WHOLE[missing + 1 :])
    wanted = {5: "no_finish", 6: "no_usage", 7: "truncated"}
    # Chunks may be fewer than tokens: one of three may hold two.
    assert stream.failure == wanted.get(missing)


@pytest.mark.parametrize(
    ("piece", "failure"),
    [
        (event(error={"message": "out of memory"}), "in_band"),
        (b'event: error\ndata: {"message": "x"}\n\n', "in_band"),
        (event(object="error", message="x"), "in_band"),
        (b"data: {half\n\n", "protocol"),
        (event(choices="none"), "protocol"),
        (event(choices=[{"delta": {"content": 5}}]), "protocol"),
    ],
)
@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_failure_within_a_stream_is_none_the_less_a_failure(
    piece: bytes, failure: str, place: int
) -> None:
    assert judged([*WHOLE[:place], piece, *WHOLE[place:]]).failure == failure


def test_another_length_than_asked_is_a_failure_unless_free() -> None:
    assert judged(WHOLE, wanted=4).failure == "length"
    assert judged(WHOLE, wanted=None).failure is None
    stopped = [*WHOLE[:5], choice(finish="stop"), *WHOLE[6:]]
    assert judged(stopped, wanted=3).failure == "length"


def test_a_server_that_does_not_stop_is_left() -> None:
    flood = Stream(4)
    flood.headers(200, "text/event-stream", 0.0)
    for _ in range(2000):
        flood.body(choice(content="x"), 1.0)
        if flood.over:
            break
    assert flood.failure == "protocol"
    assert len(flood.chunks) <= 8 * 4 + 1001
    endless = Stream(4)
    endless.headers(200, "text/event-stream", 0.0)
    for _ in range(40):
        endless.body(b"x" * 2**20, 1.0)
        if endless.over:
            break
    assert endless.failure == "protocol"
    assert "without an event" in endless.error
    whole = Whole()
    while not whole.over:
        whole.body(b"x" * 2**20, 1.0)
    whole.end(2.0)
    assert whole.problem == "the answer does not end"


def test_a_token_without_text_is_a_token_and_a_prelude_is_none() -> None:
    stream = judged([PRELUDE, choice(content=""), choice(content="x"), *WHOLE[5:]])
    assert [moment for moment, _ in stream.chunks] == [2.0, 3.0]


def test_tool_calls_and_plain_completions_are_tokens() -> None:
    call = [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]
    text = event(choices=[{"text": "x", "finish_reason": None}])
    stream = judged([choice(tool_calls=call), text, *WHOLE[5:]])
    assert (len(stream.chunks), stream.text) == (2, "f{}x")


def test_usage_on_every_chunk_tells_the_tokens_of_each() -> None:
    pieces = [
        event(
            choices=[{"index": 0, "delta": {"content": "x"}}],
            usage={"prompt_tokens": 1, "completion_tokens": total},
        )
        for total in (2, 3)
    ]
    assert [n for _, n in judged([*pieces, *WHOLE[5:]]).chunks] == [2, 1]


@pytest.mark.parametrize(
    ("status", "kind", "failure"),
    [
        (429, "application/json", "refused"),
        (500, "text/event-stream", "http"),
        (200, "application/json", "protocol"),
        (302, "text/html", "http"),
    ],
)
def test_what_is_no_stream_is_no_answer(status: int, kind: str, failure: str) -> None:
    stream = Stream()
    stream.headers(status, kind, 0.0)
    stream.body(b"".join(WHOLE), 1.0)
    stream.end(2.0)
    assert stream.failure == failure


@given(st.binary(max_size=300))
def test_no_bytes_break_the_splitter(data: bytes) -> None:
    whole, apart = EventSplitter(), EventSplitter()
    wanted = whole.feed(data)
    assert [e for byte in data for e in apart.feed(bytes([byte]))] == wanted
    assert whole.pending == apart.pending


def test_data_lines_of_one_event_are_one_text() -> None:
    assert EventSplitter().feed(b"data: a\ndata:b\n\n") == [(b"", b"a\nb")]


def test_a_text_that_repeats_itself_is_found_and_another_is_not() -> None:
    assert is_looping("start " + "again and " * 60)
    assert not is_looping(" ".join(str(n) for n in range(300)))
    assert not is_looping("short short")


def test_a_dialect_without_done_must_end_whole_by_its_framing() -> None:
    def ended(problem: Failure | None) -> Failure | None:
        stream = Stream(3, needs_done=False)
        stream.headers(200, "text/event-stream", 0.0)
        stream.body(b"".join(WHOLE[:-1]), 1.0)
        stream.end(2.0, problem, "the connection was lost")
        return stream.failure

    assert ended(None) is None
    assert ended("truncated") == "truncated"
