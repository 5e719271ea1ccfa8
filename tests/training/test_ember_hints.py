import math
from pathlib import Path
from random import Random

import pytest
import torch

from relight.ember import tools
from relight.text.tokenizer import Tokenizer
from training.hints import NONE, Marks, first_of_name, not_known, not_looking, sought
from training.rows import DOCUMENT, RowMaker

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


def test_a_tool_may_be_asked_for_by_its_place() -> None:
    rng = Random(4)
    box = tools.draw_toolbox(rng, "en", "train", most=12)
    for place, tool in enumerate(box.tools):
        assert tools.draw_request(rng, "en", box, which=place).tool is tool


@pytest.mark.parametrize("seed", range(6))
def test_where_an_answer_begins_a_name_its_description_is_sought(seed: int) -> None:
    tokenizer = Tokenizer.load(TOKENIZER)
    row = RowMaker(tokenizer, "v4.1").tools_row(Random(seed), 1024)
    ids = torch.tensor(row.ids.astype("int64"))[None]
    hints = first_of_name(ids[:, :-1], Marks.of(tokenizer))
    answers = torch.tensor(row.tags > DOCUMENT)
    wanted = sought(ids, hints, answers)[0]
    assert wanted.any()
    for place, word in wanted.nonzero().tolist():
        assert answers[place]
        assert hints[word] == ids[0, place + 1]
        assert word < place
    assert not sought(ids, hints, torch.zeros_like(answers)).any()


def test_attention_is_taught_to_look_at_what_is_sought() -> None:
    wanted = torch.zeros(1, 4, 4, dtype=torch.bool)
    wanted[0, 3, :2] = True
    shares = torch.full((1, 4, 8), 0.125, requires_grad=True)
    loss = not_looking(shares, wanted)
    assert loss.item() == pytest.approx(math.log(4))
    loss.backward()
    assert shares.grad is not None
    assert (shares.grad[0, 3, :2] < 0).all()
    assert shares.grad.count_nonzero() == 2


def test_what_is_sought_is_to_be_known_word_by_word() -> None:
    ids = torch.tensor([[5, 6, 7]])
    wanted = torch.zeros(1, 3, 3, dtype=torch.bool)
    wanted[0, 2, :2] = True
    said = torch.full((3, 8), -9.0)
    said[2, 5], said[2, 6] = -1.0, -3.0
    assert not_known(said, ids, wanted).item() == pytest.approx(2.0)
