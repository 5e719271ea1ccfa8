"""A tiny run learns, and goes on from its checkpoint."""

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from relight.base.official import schedule
from relight.text.tokenizer import Tokenizer
from training.model import EMBER
from training.network import Mode
from training.optimiser import orthogonal
from training.rows import RowMaker
from training.stream import Batch
from training.train import Recipe, Trainer

TOKENIZER = Path(__file__).parents[2] / "training" / "tokenizer"
TINY = replace(
    EMBER,
    hidden_size=128,
    num_heads=2,
    num_experts=4,
    experts_per_token=2,
    index_topk=16,
    layers=schedule((0, 4), 1),
)


class OneBatch:
    """The same rows again and again."""

    waited_s = 0.0

    def __init__(self) -> None:
        maker = RowMaker(Tokenizer.load(TOKENIZER), "v4")
        rows = [maker.chat_row(Random(seed), 128) for seed in range(2)]
        self.batch = Batch(np.stack([r.ids for r in rows]), np.stack([r.tags for r in rows]))

    def next(self, progress: float) -> Batch:
        return self.batch


def tiny_trainer(folder: Path) -> Trainer:
    recipe = Recipe(seed=0, step_tokens=256, num_workers=0, compiled=False)
    stream = OneBatch()
    return Trainer(TINY, recipe, stream, torch.device("cpu"), folder, folder)  # type: ignore[arg-type]


def loss_of(trainer: Trainer, mode: Mode) -> float:
    batch = trainer.stream.next(0.0)
    ids, tags = (torch.from_numpy(a.astype("int64")) for a in (batch.ids, batch.tags))
    with torch.no_grad():
        return float(trainer._loss(ids, tags.reshape(-1), mode)[0])


def test_one_batch_is_learnt_through_all_phases(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path)
    before = loss_of(trainer, Mode())
    trainer.step = 100  # no warm-up
    for i in range(14):
        trainer._one_step(trainer.stream.next(0.0), i / 14)
    assert loss_of(trainer, Mode()) < 0.75 * before
    assert loss_of(trainer, Mode(weights=True, activations=True)) < 0.75 * before


def test_a_checkpoint_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path)
    for _ in range(2):
        trainer._one_step(trainer.stream.next(0.0), 0.1)
    trainer.save()
    other = tiny_trainer(tmp_path)
    other.resume(tmp_path / "resume.pt")
    for some in (trainer, other):
        some._one_step(some.stream.next(0.0), 0.2)
    for name, tensor in trainer.parameters.items():
        assert torch.equal(tensor, other.parameters[name]), name


@pytest.mark.parametrize("shape", [(3, 32, 96), (3, 96, 32)])
def test_muon_updates_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


def test_a_run_from_stored_weights_begins_in_the_last_phases(tmp_path: Path) -> None:
    trainer, other = tiny_trainer(tmp_path), tiny_trainer(tmp_path)
    trainer._one_step(trainer.stream.next(0.0), 0.1)
    other.go_on_from(trainer.parameters)
    for name, tensor in trainer.parameters.items():
        assert torch.equal(tensor, other.parameters[name]), name
    modes: list[Mode] = []
    other._one_step = lambda batch, progress: modes.append(other._mode(progress))  # type: ignore[assignment, method-assign]
    other.run(0.001)
    assert modes
    assert all(mode.weights and mode.activations for mode in modes)
