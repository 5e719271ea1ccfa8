"""The layout that asks for the middle of a text."""

import pytest

from relight.base.errors import Unsupported
from relight.text.fim import fill_in
from relight.text.tokenizer import PUBLIC_IDS


def test_the_middle_is_asked_for_after_both_ends(public):
    before, after = public.encode_raw("def f(x):\n"), public.encode_raw("\n    return y")
    ids = fill_in(public, before, after)
    assert ids == [128801, *before, 128800, *after, 128802]
    assert public.decode(ids) == (
        "<｜fim▁begin｜>def f(x):\n<｜fim▁hole｜>\n    return y<｜fim▁end｜>"
    )


def test_the_beginning_of_a_text_stays_in_front(public):
    assert fill_in(public, [PUBLIC_IDS.bos, 5], [6]) == [0, 128801, 5, 128800, 6, 128802]
    assert fill_in(public, [], [6]) == [128801, 128800, 6, 128802]


def test_a_vocabulary_without_the_markers_is_told(tiny):
    with pytest.raises(Unsupported, match="suffix") as found:
        fill_in(tiny, [5], [6])
    assert found.value.param == "suffix"
