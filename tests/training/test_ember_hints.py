from pathlib import Path
from random import Random

import pytest
import torch

from relight.ember import tools
from relight.text.tokenizer import Tokenizer
from training.hints import NONE, Marks, first_of_name
from training.rows import RowMaker

TOKENIZER = Path(__file__).parents[2] / "training" / "tokenizer"


@pytest.mark.parametrize("seed", range(6))
def test_words_of_a_description_are_taught_how_their_tools_name_begins(seed: int) -> None:
    tokenizer = Tokenizer.load(TOKENIZER)
    row = RowMaker(tokenizer, "v4.1").tools_row(Random(seed), 1024)
    ids = torch.tensor(row.ids.astype("int64"))[None]
    hints = first_of_name(ids, Marks.of(tokenizer)).tolist()
    text = tokenizer.decode(ids[0].tolist())
    taught = [place for place, hint in enumerate(hints) if hint != NONE]
    assert len(taught) == 5 * text.count('", "description": "')
    for place in taught:
        before = tokenizer.decode(ids[0, : place + 1].tolist())
        name = before.rsplit('{"name": "', 1)[1]
        assert name.startswith(tokenizer.decode([hints[place]]))
        assert '", "description": "' in name


def test_text_without_tools_is_taught_nothing() -> None:
    tokenizer = Tokenizer.load(TOKENIZER)
    ids = torch.tensor([tokenizer.encode_text("What is the demand of silk? " * 4)])
    assert (first_of_name(ids, Marks.of(tokenizer)) == NONE).all()


def test_each_tool_is_asked_for_once_before_any_is_again() -> None:
    rng = Random(4)
    box = tools.draw_toolbox(rng, "en", "train", most=12)
    order = rng.sample(range(len(box.tools)), len(box.tools))
    asked = [tools.draw_request(rng, "en", box, which=i).tool.name for i in order]
    assert sorted(asked) == sorted(tool.name for tool in box.tools)
