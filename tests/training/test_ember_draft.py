"""The training form of a draft is the draft, it learns, and its shard is one more file."""

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from relight.base.checkpoint import open_model
from relight.base.numerics import OFFICIAL
from relight.base.official import schedule
from relight.base.tensors import draft_tensors
from relight.engine.plan import Rows
from relight.model.draft import Draft
from relight.model.network import load
from relight.model.reference import ReferenceModel
from relight.model.reference_draft import ReferenceDraft
from relight.model.reference_parts import Trace
from relight.model.state import draft_rings
from relight.model.weights_draft import load_draft
from relight.text.tokenizer import Tokenizer
from tests.model.harness import Driver
from training import acceptance, score
from training.draft import DraftNetwork, initial_draft, live_experts, with_draft
from training.export import export, export_draft, read_back, read_draft
from training.model import EMBER, Parameters, initial, official
from training.network import Mode, Network
from training.rows import TAG, RowMaker
from training.stream import Batch
from training.train import Recipe, Trainer, trained_parameters
from training.train_draft import DraftTrainer, draw_anchors

CPU = torch.device("cpu")
TOKENIZER = Path(__file__).parents[2] / "training" / "tokenizer"
TINY = with_draft(
    replace(
        EMBER,
        hidden_size=128,
        num_heads=2,
        num_experts=4,
        experts_per_token=2,
        index_topk=16,
        layers=schedule((0, 4, 0), 1),
    )
)
SMALL = with_draft(
    replace(EMBER, vocab_size=96, num_experts=9, experts_per_token=2, index_topk=16, index_heads=32)
)


def spread(parameters: Parameters) -> Parameters:
    """Off what is zero or one in the beginning."""
    for name, tensor in parameters.items():
        if tensor.is_floating_point():
            amount = 0.3 if "norm" in name or "sink" in name or "markov" in name else 0.05
            tensor.data.add_(torch.randn_like(tensor), alpha=amount)
    return parameters


def test_blocks_equal_the_reference_draft() -> None:
    torch.manual_seed(0)
    backbone = spread(initial(SMALL, 0, CPU))
    parameters = spread(initial_draft(SMALL, 1, CPU))
    ids = torch.randint(12, 96, (2, 257))
    network, drafting = Network(SMALL), DraftNetwork(SMALL)
    weights = drafting.prepare(parameters, Mode())
    anchors = torch.tensor([[[0, 127], [128, 250]], [[3, 77]] * 2])
    anchors[1, 1] += 128
    with torch.no_grad():
        taps: list[torch.Tensor] = []
        shared = network.prepare(backbone, Mode())
        network.forward(shared, ids[:, :-1], Mode(), taps=taps)
        blocks = drafting.blocks(weights, shared, ids, torch.cat(taps, 1), anchors, Mode())
        reference = reference_draft(backbone, parameters)
        for row in range(2):
            trace = Trace()
            model = ReferenceModel(SMALL, dict(official(SMALL, backbone)))
            model.forward(ids[row, :-1], trace)
            context = reference.context(reference.taps(trace.layers)[0])
            for number, anchor in enumerate(anchors[row].flatten().tolist()):
                given = ids[row, anchor + 1 :].tolist()
                wanted = reference.propose(
                    context, anchor, given[0], lambda _, at, row=row: int(ids[row, at % 257])
                )
                at = (row * 4 + number) * 5
                found = blocks.logits[at : at + 5]
                assert (found - wanted.base_logits).abs().max() < 5e-4
                before = torch.tensor([given[0], *wanted.tokens[:-1]])
                follow, doubt = drafting.follow(weights, blocks.hidden[at : at + 5], found, before)
                assert (follow - wanted.logits).abs().max() < 5e-4
                assert (doubt - wanted.confidence).abs().max() < 5e-4


def reference_draft(backbone: Parameters, parameters: Parameters) -> ReferenceDraft:
    tensors = dict(official(SMALL, backbone))
    tensors |= dict(official(SMALL, parameters, draft_tensors(SMALL)))
    return ReferenceDraft(SMALL, tensors)


def test_anchors_stay_in_their_piece_and_leave_room_for_targets() -> None:
    torch.manual_seed(0)
    share = torch.zeros(2, 256)
    share[0, 40:60] = 1.0
    anchors = draw_anchors(share, 128, 5)
    assert (anchors // 128 == torch.arange(2)[:, None]).all()
    assert anchors.max() <= 256 - 6
    assert all(len(set(piece.tolist())) == 16 for piece in anchors.flatten(0, 1))
    assert set(anchors[0, 0].tolist()) <= set(range(39, 59))  # those whose first target counts


class OneBatch:
    """The same row again and again."""

    waited_s = 0.0

    def __init__(self) -> None:
        row = RowMaker(Tokenizer.load(TOKENIZER), "v4").chat_row(Random(0), 128)
        self.batch = Batch(row.ids[None], row.tags[None])

    def next(self, progress: float) -> Batch:
        return self.batch


def test_one_batch_is_learnt_by_a_draft_alone(tmp_path: Path) -> None:
    backbone = {name: p.detach() for name, p in initial(TINY, 0, CPU).items()}
    backbone["head.weight"] *= 40  # it is sure of what it says
    recipe = Recipe(seed=0, step_tokens=256, num_workers=0, compiled=False)
    trainer = DraftTrainer(TINY, backbone, recipe, OneBatch(), CPU, tmp_path, tmp_path)  # type: ignore[arg-type]
    kept = {name: p.clone() for name, p in backbone.items()}
    losses = []
    trainer.step = 100  # no warm-up
    for i in range(8):
        trainer._one_step(trainer.stream.next(0.0), i / 8)
        losses.append(float(trainer._sums[0]))
        trainer._sums.zero_()
    assert losses[-1] < 0.85 * losses[0], losses
    assert all(torch.equal(p, kept[name]) for name, p in backbone.items())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ember")
    export(replace(SMALL, draft=EMBER.draft), initial(SMALL, 0, CPU), folder)
    before = {path.name: path.read_bytes() for path in folder.glob("model-*.safetensors")}
    export_draft(SMALL, spread_live(), folder)
    assert before == {path.name: path.read_bytes() for path in folder.glob("model-*.safetensors")}
    return folder


def spread_live() -> Parameters:
    torch.manual_seed(3)
    parameters = initial_draft(SMALL, 1, CPU)
    parameters["markov_head.markov_w2.weight"].data.normal_()
    return parameters


def test_a_draft_is_one_more_shard_that_reads_back(exported: Path) -> None:
    config, _ = read_back(exported, CPU)
    assert config == SMALL
    wanted = DraftNetwork(SMALL).prepare(spread_live(), Mode(weights=True))
    found = read_draft(exported, CPU)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name].to(tensor.dtype), tensor), name
    closed = found["ffn.experts.w1.weight"][:, live_experts(SMALL) :]
    assert not closed.any()


def test_the_engine_drafts_what_was_trained(exported: Path) -> None:
    torch.manual_seed(1)
    ids = torch.randint(12, 96, (1, 257))
    model = open_model(exported)
    weights = load(model, CPU)
    driver = Driver(model.config, weights, OFFICIAL, num_slots=1, draft=True)
    rings = draft_rings(model.config, driver.pool)
    draft = Draft(model.config, load_draft(model, CPU), weights.embed, weights.head, OFFICIAL)
    position = 140
    rows = [Rows(0, 0, tuple(ids[0, : position + 1].tolist()), sample=True)]
    segment = driver.runner.batch.segment("prefill", rows)
    taps: list[torch.Tensor] = []
    driver.runner.model.forward(segment, driver.runner.states, taps)
    draft.keep(torch.cat(taps, dim=1), segment, rings)
    slots = torch.tensor([0])
    served = draft.propose(
        slots, torch.tensor([position]), ids[0, position + 1 : position + 2], rings
    )

    network, drafting = Network(SMALL), DraftNetwork(SMALL)
    served_mode = Mode(activations=True)
    with torch.no_grad():
        shared = network.prepare(read_back(exported, CPU)[1], served_mode)
        found: list[torch.Tensor] = []
        network.forward(shared, ids[:, :-1], served_mode, taps=found)
        anchors = torch.tensor([[[5], [position]]])
        blocks = drafting.blocks(
            drafting.prepare(read_draft(exported, CPU), served_mode),
            shared,
            ids,
            # What the engine passed at the taps, so that drafts alone are compared.
            torch.cat([torch.cat(taps, 1), torch.zeros(256 - position - 1, taps[0].shape[1] * 3)]),
            anchors,
            served_mode,
        )
    error = (served.base_logits[0] - blocks.logits[5:]).abs().max() / served.base_logits.abs().max()
    assert error < 0.02, error


def test_walks_count_what_is_accepted() -> None:
    text = [0, 0, 0, 5, 6, 7, 8, 9, 1]  # the prompt has three tokens
    wrong = [99, 99, 99]
    right = [text[at + 2 :][:3] + [99] * 3 for at in range(len(text))]
    none = acceptance.walk(text, 3, [wrong] * len(text))
    assert (none.steps, none.tokens, none.reached) == (5, 5, [0, 0, 0])
    all_ = acceptance.walk(text, 3, [row[:3] for row in right])
    assert (all_.steps, all_.tokens, all_.reached) == (2, 5, [2, 1, 1])
    second = [[row[0], 99, row[2]] for row in right]
    assert acceptance.walk(text, 3, second).reached == [3, 0, 0]


def test_acceptance_is_measured_by_slice() -> None:
    torch.manual_seed(0)
    maker = RowMaker(Tokenizer.load(TOKENIZER), "v4")
    network, drafting = Network(TINY), DraftNetwork(TINY)
    mode = Mode(activations=True)
    scorer = score.Scorer(maker, network, initial(TINY, 0, CPU), mode, 4096)
    talk = {"prose": acceptance.talk(Random(0), "en", 1)}
    found = acceptance.measure(scorer, drafting, initial_draft(TINY, 0, CPU), talk)
    assert found["prose"] == found["pooled"]
    assert found["prose"]["steps"]


class Counting:
    """Rows in which each token follows from the one before."""

    waited_s = 0.0

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def next(self, progress: float) -> Batch:
        ids = 12 + (self._rng.integers(0, 48, (2, 1)) + 7 * np.arange(129)) % 48
        return Batch(ids.astype(np.uint16), np.full((2, 128), TAG["talk"], np.uint8))


@pytest.mark.slow
def test_a_draft_learns_to_be_accepted(tmp_path: Path) -> None:
    config = replace(TINY, vocab_size=64, layers=schedule((0, 0, 0), 1))
    recipe, stream = Recipe(seed=0, step_tokens=256, num_workers=0, compiled=False), Counting()
    teacher = Trainer(config, recipe, stream, CPU, tmp_path, tmp_path)  # type: ignore[arg-type]
    run(teacher, 12)
    backbone = trained_parameters(teacher)
    trainer = DraftTrainer(config, backbone, recipe, stream, CPU, tmp_path, tmp_path)  # type: ignore[arg-type]
    before = advance(trainer, stream)
    run(trainer, 16)
    assert advance(trainer, stream) > before + 2


def run(trainer: Trainer, steps: int) -> None:
    trainer.step = 100  # no warm-up
    for i in range(steps):
        trainer._one_step(trainer.stream.next(0.0), i / steps)


def advance(trainer: DraftTrainer, stream: Counting) -> float:
    """Tokens of a step, of a draft as it is stored."""
    network, ids = trainer.network, torch.from_numpy(stream.next(0.0).ids.astype("int64"))
    assert isinstance(network, DraftNetwork)
    maker = RowMaker(Tokenizer.load(TOKENIZER), "v4")
    teacher = Network(trainer.config)
    scorer = score.Scorer(maker, teacher, trainer.backbone, Mode(activations=True), 4096)
    weights = network.prepare(trainer.parameters, Mode(weights=True))
    with torch.no_grad():
        proposals = acceptance._proposals(scorer, network, weights, ids).tolist()
    total = acceptance.Walk(0, 0, [0] * 5)
    for row, made in zip(ids.tolist(), proposals, strict=True):
        total.add(acceptance.walk(row, 20, made))
    return total.tokens / total.steps
