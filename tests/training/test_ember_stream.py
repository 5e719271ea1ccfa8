"""Workers draw ahead and end when told."""

from pathlib import Path

from training.stream import Stream, data_hash

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
    assert len({data_hash(TOKENIZER, encoding, seed) for encoding, seed in data}) == len(data)
