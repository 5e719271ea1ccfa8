"""Workers draw ahead and end when told."""

from collections import Counter
from pathlib import Path
from random import Random

from relight.text.tokenizer import Tokenizer
from training.rows import TAG, RowMaker
from training.stream import Stream, data_hash, draw_batch

TOKENIZER = Path(__file__).parents[2] / "training" / "tokenizer"


def test_a_stream_gives_whole_batches_and_ends_with_a_full_queue() -> None:
    stream = Stream(TOKENIZER, "v4.1", 0, 1024, 1)
    try:
        for _ in range(3):
            batch = stream.next(0.0)
            assert batch.ids.shape[1] == batch.tags.shape[1] + 1
    finally:
        stream.close()


def test_the_hash_of_the_data_tells_seeds_and_layouts_apart() -> None:
    data = (("v4", 0), ("v4", 1), ("v4.1", 0))
    hashes = {data_hash(TOKENIZER, encoding, seed) for encoding, seed in data}
    assert len(hashes) == len(data)
    assert data_hash(TOKENIZER, "v4", 0, "draft") not in hashes


def test_a_draft_learns_from_answers_of_every_measured_kind() -> None:
    maker, tags = RowMaker(Tokenizer.load(TOKENIZER), "v4"), Counter[int]()
    for number in range(24):
        tags.update(draw_batch(maker, Random(number), 0.0, 4096, "draft").tags.flatten().tolist())
    answers = {name: tags[tag] for name, tag in TAG.items()}
    for kind in ("arithmetic", "letters", "talk", "tool call", "python"):
        assert answers[kind] > 0.05 * sum(answers.values()), answers
