"""V4.1 in its training form is V4.1, learns, and is served as it was trained."""

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from relight.base.checkpoint import open_model
from relight.base.engram import table_rows
from relight.base.numerics import OFFICIAL
from relight.base.schedule import csa2_schedule
from relight.base.specs import CandidateSpec, ModelConfig
from relight.base.tensors import draft_tensors
from relight.kernels.fine_fp4 import fine_fp4_dequantise, fine_fp4_quantise
from relight.model.network import load
from relight.model.reference_draft import ReferenceDraft
from relight.model.reference_parts import Trace
from relight.model.reference_v41 import ReferenceV41
from relight.text.token_classes import token_classes
from relight.text.tokenizer import Tokenizer
from tests.model.harness import Driver
from training import quant
from training.draft import DraftNetwork, initial_draft, with_draft
from training.export import export, export_draft, read_back, read_draft
from training.model import CLASSES, EMBER_V41, ENGRAM, Parameters, initial, official
from training.network import Extras, Mode
from training.network_v41 import NetworkV41
from training.rows import RowMaker
from training.stream import Batch
from training.train import Recipe, Trainer

CPU = torch.device("cpu")
TOKENIZER = Path(__file__).parents[2] / "training" / "tokenizer"
SMALL_TABLE = replace(ENGRAM, heads=2, vocab_size=50, compressed_vocab=96)


def small(config: ModelConfig, vocab: int) -> ModelConfig:
    table = replace(SMALL_TABLE, compressed_vocab=min(vocab, CLASSES))
    rows = table_rows(table, 1)[0]
    return replace(
        config,
        vocab_size=vocab,
        num_experts=4,
        experts_per_token=2,
        index_topk=16,
        index_heads=32,
        candidates=CandidateSpec(4, 6, 4),
        engram=table,
        layers=tuple(replace(x, engram_rows=rows if x.index == 1 else 0) for x in config.layers),
    )


SMALL = small(EMBER_V41, 96)
CLASSES_96 = torch.tensor(token_classes(TOKENIZER, 96))
TINY = replace(
    small(EMBER_V41, 4096),
    hidden_size=128,
    num_heads=2,
    layers=csa2_schedule((0, 2, 1), (1, 2), (1, 2), {1: table_rows(SMALL_TABLE, 1)[0]}),
    candidates=CandidateSpec(2, 6, 4),
)


def spread(parameters: Parameters) -> Parameters:
    for name, tensor in parameters.items():
        if tensor.is_floating_point():
            amount = 0.3 if any(p in name for p in ("norm", "sink", "_weight", "markov")) else 0.05
            tensor.data.add_(torch.randn_like(tensor), alpha=amount)
    return parameters


def least_margin(trace: Trace) -> torch.Tensor:
    """Of all choices of each token [B, T]."""
    margins = []
    for layer in trace.layers:
        margins.append(layer.routing.margin)
        if layer.selection is not None:
            margins.append(layer.selection.margin)
            if layer.selection.candidate_margin is not None:
                margins.append(layer.selection.candidate_margin)
    return torch.stack(margins).amin(0)


def test_the_tokenizer_has_as_many_classes_as_the_table_is_made_for() -> None:
    assert len(set(token_classes(TOKENIZER, 4096))) == CLASSES


def test_fused_fine_fp4_rounding_equals_the_codec() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 160) * torch.logspace(-4, 2, 64)[:, None]
    x[0, :16] = 0
    assert torch.equal(quant.fine_fp4_rows(x), fine_fp4_dequantise(*fine_fp4_quantise(x, 16)))


@pytest.mark.parametrize("sparse", [True, False])
def test_network_equals_the_reference_of_v41(sparse: bool) -> None:
    """With candidates that bind, in rows of 256 tokens whose indexers see up to 256 entries."""
    torch.manual_seed(0)
    config = SMALL
    if not sparse:
        config = replace(SMALL, index_topk=1000, candidates=CandidateSpec(4, 1000, 4))
    parameters = spread(initial(config, 0, CPU))
    ids = torch.randint(12, 96, (2, 256))
    network = NetworkV41(config, classes=CLASSES_96)
    weights = network.prepare(parameters, Mode())
    with torch.no_grad():
        extras = Extras(torch.ones(512, dtype=torch.bool))
        hidden = network.forward(weights, ids, Mode(sparse=sparse), extras)
        found = network.logits(weights, hidden).view(2, 256, -1)
        trace = Trace()
        reference = ReferenceV41(config, dict(official(config, parameters)), CLASSES_96)
        wanted = reference.forward(ids, trace)
        without = network.forward(weights, ids, Mode(sparse=sparse, engram=False))
    # Until the first choice that the last bits of a sum decide.
    alike = (least_margin(trace) > 1e-5).cumprod(-1).bool()
    assert alike.float().mean() > 0.6
    assert (found - wanted)[alike].abs().max() < 5e-4 * wanted.abs().max()
    assert len(extras.index_losses) == 9  # layers 6 and 7 teach the source of candidates, too
    assert not torch.allclose(without, hidden, atol=1e-2)
    if sparse:  # an indexer behind the source picks others than it would without candidates
        chosen = trace.layers[6].selection
        assert chosen is not None
        assert (~torch.isneginf(chosen.scores)).sum(-1).max() <= 6 * 4


@pytest.mark.slow
def test_one_batch_is_learnt_by_v41_through_all_phases(tmp_path: Path) -> None:
    row = RowMaker(Tokenizer.load(TOKENIZER), "v4.1").chat_row(Random(0), 128)

    class Stream:
        waited_s = 0.0

        def next(self, progress: float) -> Batch:
            return Batch(row.ids[None], row.tags[None])

    recipe = Recipe(seed=0, step_tokens=128, num_workers=0, compiled=False)
    classes = torch.tensor(token_classes(TOKENIZER, 4096))
    trainer = Trainer(TINY, recipe, Stream(), CPU, tmp_path, tmp_path, classes)  # type: ignore[arg-type]
    trainer.step = 100  # no warm-up
    table = trainer.parameters["engram.embed.weight"].detach().clone()
    losses = []
    for i in range(9):
        trainer._one_step(trainer.stream.next(0.0), i / 9)
        losses.append(float(trainer._sums[0]))
        trainer._sums.zero_()
    assert losses[-1] < 0.85 * losses[0], losses
    assert not torch.equal(table, trainer.parameters["engram.embed.weight"])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ember")
    for path in TOKENIZER.iterdir():
        shutil.copy(path, folder)
    export(SMALL, initial(SMALL, 0, CPU), folder)
    return folder


def test_exported_v41_weights_are_those_of_the_last_training_pass(exported: Path) -> None:
    config, read = read_back(exported, CPU)
    assert config == SMALL
    trained = NetworkV41(SMALL, classes=CLASSES_96).prepare(
        initial(SMALL, 0, CPU), Mode(weights=True)
    )
    assert read.keys() == trained.keys()
    for name, tensor in trained.items():
        assert torch.equal(read[name].to(tensor.dtype), tensor), name


def test_engine_computes_the_v41_that_was_trained(exported: Path) -> None:
    torch.manual_seed(1)
    ids = torch.randint(12, 96, (1, 256))
    model = open_model(exported)
    driver = Driver(model.config, load(model, CPU), OFFICIAL, num_slots=1)
    served = driver.given(0, ids[0].tolist())
    network = NetworkV41(SMALL, classes=CLASSES_96)
    mode = Mode(weights=True, activations=True)
    with torch.no_grad():
        weights = network.prepare(initial(SMALL, 0, CPU), mode)
        trained = network.logits(weights, network.forward(weights, ids, mode))
    error = (served - trained).abs().amax(-1) / trained.abs().amax()
    assert error[:8].max() < 1e-5, error[:8]
    assert error.median() < 0.05, error.median()
    assert (served.argmax(-1) == trained.argmax(-1)).float().mean() > 0.85


def test_blocks_of_v41_equal_the_reference_draft() -> None:
    torch.manual_seed(0)
    config = with_draft(replace(SMALL, num_experts=9))
    backbone, parameters = spread(initial(config, 0, CPU)), spread(initial_draft(config, 1, CPU))
    ids = torch.randint(12, 96, (1, 257))
    network, drafting = NetworkV41(config, classes=CLASSES_96), DraftNetwork(config)
    anchors = torch.tensor([[[1, 127], [128, 250]]])
    tensors = dict(official(config, backbone))
    tensors |= dict(official(config, parameters, draft_tensors(config)))
    reference = ReferenceDraft(config, tensors)
    with torch.no_grad():
        taps: list[torch.Tensor] = []
        shared = network.prepare(backbone, Mode())
        network.forward(shared, ids[:, :-1], Mode(), taps=taps)
        trace = Trace()
        ReferenceV41(config, tensors, CLASSES_96).forward(ids[0, :-1], trace)
        context = reference.context(reference.taps(trace.layers)[0])
        weights = drafting.prepare(parameters, Mode())
        blocks = drafting.blocks(weights, shared, ids, torch.cat(taps, 1), anchors, Mode())
        for number, anchor in enumerate(anchors.flatten().tolist()):
            wanted = reference.propose(context, anchor, int(ids[0, anchor + 1]))
            found = blocks.logits[number * 5 : number * 5 + 5]
            assert (found - wanted.base_logits).abs().max() < 5e-4


def test_a_draft_of_v41_is_one_more_shard(exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ember"
    shutil.copytree(exported, folder)
    config = with_draft(SMALL)
    export_draft(config, initial_draft(config, 1, CPU), folder)
    assert read_back(folder, CPU)[0] == config
    wanted = DraftNetwork(config).prepare(initial_draft(config, 1, CPU), Mode(weights=True))
    found = read_draft(folder, CPU)
    for name, tensor in wanted.items():
        assert torch.equal(found[name].to(tensor.dtype), tensor), name
