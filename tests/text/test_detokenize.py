import itertools
import random

import pytest

from relight.base.errors import BadRequest
from relight.text.detokenize import Detokenizer, StopStrings

CHARACTERS = ["a", "é", "漢", "🙂", "\n", " ", "｜"]


def split(items, pick):
    """Cuts a sequence in random places."""
    cuts = sorted(pick.sample(range(len(items) + 1), min(3, len(items) + 1)))
    bounds = [0, *cuts, len(items)]
    return [items[a:b] for a, b in itertools.pairwise(bounds)]


def test_every_split_of_tokens_gives_the_same_text(tiny):
    pick = random.Random("detokenize")
    for _ in range(200):
        raw = "".join(pick.choices(CHARACTERS, k=8)).encode()
        raw = raw[: pick.randint(0, len(raw))]  # may end inside a character
        ids = [3 + byte for byte in raw]  # bytes begin at id 3 in this vocabulary
        streams = [[ids], [[token] for token in ids], split(ids, pick)]
        texts = []
        for chunks in streams:
            stream = Detokenizer(tiny)
            texts.append("".join(map(stream.feed, chunks)) + stream.finish())
        assert set(texts) == {raw.decode("utf-8", "replace")}


def test_an_unfinished_character_waits_and_a_broken_one_does_not(tiny):
    stream = Detokenizer(tiny)
    euro = [3 + byte for byte in "€".encode()]
    assert stream.feed(euro[:2]) == ""
    assert stream.feed(euro[2:]) == "€"
    assert stream.feed(euro[:2]) == ""
    assert stream.feed([3 + ord("a")]) == "\ufffda"
    assert stream.feed(euro[:1]) == ""
    assert stream.finish() == "\ufffd"


def test_ends_of_a_text_have_no_text_and_other_markers_are_spelt(tiny):
    mark = tiny.special
    stream = Detokenizer(tiny)
    assert stream.feed([mark.bos, 3 + ord("x"), mark.think_open, mark.eos, mark.pad]) == "x<think>"


def naive_stop(text, stops, include):
    """Character by character: what is complete first, the longest of those."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            stop = max(done, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@pytest.mark.parametrize("include", [False, True])
def test_every_split_of_text_stops_at_the_same_place(include):
    pick = random.Random(f"stops {include}")
    for _ in range(2000):
        stops = [
            "".join(pick.choices("ab", k=pick.randint(1, 4))) for _ in range(pick.randint(0, 3))
        ]
        text = "".join(pick.choices("abc", k=pick.randint(0, 12)))
        for chunks in (text, [text], split(text, pick)):
            stream = StopStrings(stops, include)
            got = "".join(map(stream.feed, chunks)) + stream.finish()
            assert (got, stream.matched) == naive_stop(text, stops, include)


def naive_stop_after(text, stops, start):
    """As `naive_stop`, where a string that is complete before `start` is passed and forgotten."""
    passed = 0
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[passed:end].endswith(stop)]
        if done and end > start:
            stop = max(done, key=len)
            return text[: end - len(stop)], stop
        if done:
            passed = end
    return text, None


def test_a_string_that_is_complete_before_the_filter_is_armed_passes():
    pick = random.Random("armed")
    for _ in range(2000):
        stops = ["".join(pick.choices("ab", k=pick.randint(1, 3))) for _ in range(2)]
        text = "".join(pick.choices("abc", k=pick.randint(0, 12)))
        start = pick.randint(0, 12)
        stream, got = StopStrings(stops), ""
        for number, character in enumerate(text, start=1):
            stream.armed = number > start
            got += stream.feed(character)
        assert (got + stream.finish(), stream.matched) == naive_stop_after(text, stops, start)


def test_only_what_may_become_a_match_is_held_back():
    stream = StopStrings(["\n\nUser:"])
    assert stream.feed("Hello\n") == "Hello"
    assert stream.feed("world\n\nUs") == "\nworld"
    assert stream.feed("a") == "\n\nUsa"
    assert stream.feed("\n\n") == ""
    assert stream.finish() == "\n\n"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(BadRequest, match="empty string"):
        StopStrings(["a", ""])
