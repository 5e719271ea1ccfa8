import hashlib
import json
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from relight.base.checkpoint import INDEX_NAME, open_model, read_checkpoint
from relight.base.errors import BadSetting, CannotFit
from relight.base.official import (
    V4_FLASH,
    V4_FLASH_DSPARK,
    V4_PRO,
    V41_FLASH,
    check_official_numerics,
    schedule,
)
from relight.kernels.codec import Fp4Weight, Fp8Weight
from relight.lab import synth as module
from relight.lab.synth import PRESETS, TINY, preset, synth
from relight.model.reference import ReferenceModel
from relight.text.token_classes import token_classes
from relight.text.tokenizer import Tokenizer

SMALL = replace(TINY, vocab_size=320)


def digests(folder: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
    }


def tensor_bytes(folder: Path) -> dict[str, bytes]:
    return {
        name: tensor.file.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
        for name, tensor in read_checkpoint(folder).tensors.items()
    }


def values(folder: Path) -> dict[str, torch.Tensor]:
    """Every matrix and vector in float32, under its official name without `.scale`."""
    stored: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        stored |= load_file(file)
    decoded = {}
    for name, tensor in stored.items():
        scale = stored.get(name.removesuffix("weight") + "scale")
        if tensor.dtype == torch.int8 and scale is not None:
            weight = Fp4Weight(tensor.view(torch.uint8), scale.view(torch.uint8))
            decoded[name] = weight.decode()
        elif tensor.dtype == torch.float8_e4m3fn and scale is not None:
            decoded[name] = Fp8Weight(
                tensor.view(torch.uint8), scale.view(torch.uint8), 128
            ).decode()
        elif not name.endswith(".scale"):
            decoded[name] = tensor if tensor.dtype == torch.int64 else tensor.float()
    return decoded


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    synth(SMALL, folder, tokenizer=None)
    return folder


def test_a_seed_gives_the_same_bytes_on_any_number_of_threads(tmp_path, small):
    synth(SMALL, tmp_path, tokenizer=None, threads=5)
    assert digests(tmp_path) == digests(small)


def test_another_seed_gives_other_values_of_the_same_layout(tmp_path, small):
    synth(SMALL, tmp_path, seed=1, tokenizer=None)
    ours, theirs = tensor_bytes(tmp_path), tensor_bytes(small)
    assert ours.keys() == theirs.keys()
    assert not any(ours[name] == theirs[name] for name in ours if len(ours[name]) > 16)


def test_a_tensor_does_not_depend_on_what_else_is_written(tmp_path, small):
    synth(replace(SMALL, layers=SMALL.layers[:2]), tmp_path, tokenizer=None)
    ours, theirs = tensor_bytes(tmp_path), tensor_bytes(small)
    assert all(theirs[name] == data for name, data in ours.items())


def test_what_is_written_is_the_checkpoint_of_its_config(small):
    model = open_model(small)
    assert model.config == SMALL
    assert model.parsed.unknown == ()
    assert len(model.checkpoint.files) == 2 + len(SMALL.layers)


def test_every_tensor_is_aligned_to_its_own_width(small):
    widths = {"F32": 4, "BF16": 2, "I64": 8}
    tensors = read_checkpoint(small).tensors.values()
    assert not any(tensor.offset % widths.get(tensor.dtype, 1) for tensor in tensors)


@pytest.mark.parametrize("config", [V4_FLASH, V4_FLASH_DSPARK], ids=["preview", "0731"])
def test_the_whole_official_checkpoint_is_laid_out_sparse(tmp_path, config):
    written = synth(config, tmp_path, sparse=True)
    model = open_model(tmp_path)
    sizes = {"mtp1": (69_187, 159_609_485_896, 46), "dspark": (72_317, 166_878_536_440, 48)}
    assert (written.num_tensors, written.nbytes, written.num_shards) == sizes[config.draft.kind]
    assert model.checkpoint.nbytes == written.nbytes
    assert model.config == config
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    assert index["metadata"]["total_size"] == written.nbytes
    on_disk = sum(file.stat().st_blocks * 512 for file in tmp_path.iterdir())
    assert on_disk < 50e6
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) > written.nbytes


def test_the_roles_of_v41_are_written_and_read_back(tmp_path):
    config = preset("tiny-v4.1")
    engram = replace(config.engram, compressed_vocab=265)
    draft = replace(config.draft, noise_token_id=319)
    config = replace(config, vocab_size=320, engram=engram, draft=draft)
    synth(config, tmp_path, tokenizer=None)
    assert open_model(tmp_path).config == config


def test_the_tokenizer_beside_v41_has_its_system_marker_and_classes(tmp_path):
    config = preset("tiny-v4.1")
    synth(config, tmp_path, sparse=True)
    assert Tokenizer.load(tmp_path).special.system == 128799
    assert max(token_classes(tmp_path, config.vocab_size)) + 1 == config.engram.compressed_vocab


def test_layers_of_v41_are_not_cut():
    with pytest.raises(BadSetting, match="read from each other"):
        preset("v4.1-flash", 7)
    assert preset("v4.1-flash", 40) == V41_FLASH


def test_dspark_stages_lie_in_shards_of_their_own(tmp_path):
    config = replace(
        SMALL, draft=replace(V4_FLASH_DSPARK.draft, noise_token_id=319, target_layers=(1, 3))
    )
    synth(config, tmp_path, tokenizer=None)
    model = open_model(tmp_path)
    stages = {t.name.split(".")[1]: t.file.name for t in model.tensors.skipped}
    total = len(model.checkpoint.files)
    assert stages == {
        str(stage): f"model-{total - 2 + stage:05d}-of-{total:05d}.safetensors"
        for stage in range(3)
    }


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_legal_in_official_numerics(name):
    check_official_numerics(preset(name))


@pytest.mark.parametrize("num_layers", [4, 5, 7, 42])
def test_a_cut_model_of_four_layers_or_more_has_every_kind(num_layers):
    config = preset("v4-flash", num_layers)
    assert config.num_layers == num_layers
    assert {layer.attention for layer in config.layers} == {"sliding", "csa", "hca"}
    assert {layer.routing for layer in config.layers} == {"hash", "bias"}
    assert config.draft.kind == "none"
    assert (config.hidden_size, config.num_experts) == (4096, 256)


def test_four_layers_are_one_of_each_kind_and_csa_with_both_routings():
    kinds = [(layer.attention, layer.routing) for layer in preset("v4-flash", 4).layers]
    assert kinds == [("sliding", "hash"), ("csa", "hash"), ("hca", "bias"), ("csa", "bias")]


def test_all_layers_are_the_model_itself():
    assert preset("v4-flash-0731", 43) == V4_FLASH_DSPARK
    assert preset("v4-pro") == V4_PRO


@pytest.mark.parametrize(("name", "layers"), [("v4-flash", 44), ("v4-flash", -1), ("v5", 0)])
def test_a_preset_that_does_not_exist_is_refused(name, layers):
    with pytest.raises(BadSetting, match="; wanted"):
        preset(name, layers)


def test_hash_tables_choose_distinct_experts_and_use_them_all(small):
    table = values(small)["layers.1.ffn.gate.tid2eid"]
    assert all(len(set(row)) == SMALL.experts_per_token for row in table.tolist())
    assert set(table.flatten().tolist()) == set(range(SMALL.num_experts))


@pytest.mark.parametrize(("experts", "chosen"), [(1, 1), (2, 2), (6, 6), (256, 6), (7, 3)])
def test_hash_tables_are_distinct_for_any_number_of_experts(tmp_path, experts, chosen):
    config = replace(SMALL, num_experts=experts, experts_per_token=chosen, layers=schedule((0,), 1))
    synth(config, tmp_path, tokenizer=None)
    table = values(tmp_path)["layers.0.ffn.gate.tid2eid"].tolist()
    assert all(len(set(row)) == chosen for row in table)
    assert {expert for row in table for expert in row} <= set(range(experts))


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.attn.wq_b.weight",
        "layers.1.attn.indexer.wq_b.weight",
        "layers.2.attn.wo_a.weight",
        "layers.3.ffn.experts.5.w2.weight",
        "layers.3.ffn.shared_experts.w1.weight",
        "layers.1.attn.compressor.wgate.weight",
        "layers.2.hc_ffn_fn",
    ],
)
def test_matrices_keep_the_size_of_what_they_multiply(small, name):
    matrix = values(small)[name]
    assert matrix.isfinite().all()
    gain = matrix.square().sum(dim=1).mean().sqrt()
    assert 0.5 < gain < 2.5


def test_a_random_model_gives_finite_and_varied_logits(small):
    model = ReferenceModel(SMALL, values(small))
    ids = torch.randint(0, SMALL.vocab_size, (1, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model.forward(ids)[0]
    assert logits.isfinite().all()
    assert 1.0 < logits.std() < 5.0
    assert len(set(logits.argmax(dim=1).tolist())) > 20


def test_memory_stays_bounded_by_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 8192)
    made, real = [], module.random_bytes

    def recording(*arguments):
        data = real(*arguments)
        made.append(data.nbytes)
        return data

    monkeypatch.setattr(module, "random_bytes", recording)
    synth(replace(SMALL, layers=schedule((4,), 0)), tmp_path, tokenizer=None)
    assert max(made) <= 8192
    assert sum(made) == read_checkpoint(tmp_path).nbytes


def test_progress_ends_with_every_byte(tmp_path):
    seen = []
    written = synth(
        replace(SMALL, layers=schedule((0,), 1)),
        tmp_path,
        tokenizer=None,
        progress=lambda *step: seen.append(step),
    )
    assert seen == sorted(seen)
    assert seen[-1] == (written.nbytes, written.nbytes)


def test_the_public_tokenizer_lies_beside_the_model(tmp_path):
    synth(V4_FLASH, tmp_path, sparse=True)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    assert any(token["content"] == "<｜User｜>" for token in tokenizer["added_tokens"])
    assert (tmp_path / "tokenizer_config.json").exists()


def test_the_public_tokenizer_is_refused_for_another_vocabulary(tmp_path):
    with pytest.raises(BadSetting, match="vocab_size 320"):
        synth(SMALL, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_overwritten_by_force_only(tmp_path, small):
    synth(replace(SMALL, layers=SMALL.layers[:1]), tmp_path, tokenizer=None)
    before = digests(tmp_path)
    with pytest.raises(BadSetting, match="--force"):
        synth(SMALL, tmp_path, tokenizer=None)
    assert digests(tmp_path) == before
    synth(SMALL, tmp_path, tokenizer=None, force=True)
    assert digests(tmp_path) == digests(small)


def test_a_writer_that_fails_leaves_no_half_of_a_checkpoint(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "random_bytes", fail)
    with pytest.raises(OSError, match="No space"):
        synth(SMALL, tmp_path, tokenizer=None)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 90, 10))
    with pytest.raises(CannotFit, match="10 bytes free"):
        synth(SMALL, tmp_path, tokenizer=None)
    assert list(tmp_path.iterdir()) == []
