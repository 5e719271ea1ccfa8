import dataclasses
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from relight.base.checkpoint import open_model
from relight.base.errors import BadCheckpoint
from relight.kernels.codec import DenseWeight, Fp4Weight, Fp8Weight, StackedFp4, StackedFp8
from relight.lab.synth import synth
from relight.model import source as source_module
from relight.model.source import WeightSource
from relight.model.weights import ModelWeights, load_weights

GOLDEN = Path(__file__).parents[1] / "golden" / "v4" / "checkpoint"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def stored() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "model-00001-of-00001.safetensors")


@pytest.fixture(scope="module")
def weights() -> ModelWeights:
    return load_weights(open_model(GOLDEN), CPU)


def leaves(tree: object, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        yield name, tree
    elif isinstance(tree, tuple):
        for index, item in enumerate(tree):
            yield from leaves(item, f"{name}.{index}")
    elif dataclasses.is_dataclass(tree):
        for field in dataclasses.fields(tree):
            yield from leaves(getattr(tree, field.name), f"{name}.{field.name}")


def assert_same_bytes(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape
    assert torch.equal(found.view(torch.uint8), wanted.contiguous().view(torch.uint8))


def test_fp8_matrices_are_the_stored_bytes_and_decode_to_the_stored_values(weights, stored):
    weight = weights.layers[1].attention.wq_b
    assert isinstance(weight, Fp8Weight)
    assert weight.block == 128
    assert_same_bytes(weight.data, stored["layers.1.attn.wq_b.weight"])
    assert_same_bytes(weight.scale, stored["layers.1.attn.wq_b.scale"])
    scale = stored["layers.1.attn.wq_b.scale"].float().repeat_interleave(128, 0)
    assert torch.equal(weight.decode(), stored["layers.1.attn.wq_b.weight"].float() * scale)


def test_experts_are_stacked_by_number_and_stay_packed(weights, stored):
    experts = weights.layers[3].ffn.experts
    for matrix in ("w1", "w2", "w3"):
        stack = getattr(experts, matrix)
        assert isinstance(stack, StackedFp4)
        for expert in range(4):
            name = f"layers.3.ffn.experts.{expert}.{matrix}"
            weight = stack.expert(expert)
            assert isinstance(weight, Fp4Weight)
            assert_same_bytes(weight.data, stored[f"{name}.weight"])
            assert_same_bytes(weight.scale, stored[f"{name}.scale"])


def test_norms_become_float32_and_other_tensors_keep_their_type(weights, stored):
    layer = weights.layers[1]
    assert torch.equal(layer.attention_norm, stored["layers.1.attn_norm.weight"].float())
    assert layer.attention.indexer.compressor.norm.dtype == torch.float32
    assert_same_bytes(weights.embed, stored["embed.weight"])
    assert_same_bytes(weights.head.data, stored["head.weight"])
    assert isinstance(layer.attention.compressor.wkv, DenseWeight)
    assert layer.attention.compressor.wkv.data.dtype == torch.bfloat16
    assert_same_bytes(layer.attention.compressor.ape, stored["layers.1.attn.compressor.ape"])
    assert_same_bytes(layer.ffn.router.table, stored["layers.1.ffn.gate.tid2eid"])
    assert_same_bytes(layer.hyper_ffn.fn, stored["layers.1.hc_ffn_fn"])


def test_every_stored_byte_of_the_backbone_has_one_place_in_the_tree(weights, stored):
    stored_bytes = sum(tensor.nbytes for tensor in stored.values())
    norms = sum(t.numel() for n, t in stored.items() if n.endswith("norm.weight"))
    assert sum(tensor.nbytes for _, tensor in leaves(weights)) == stored_bytes + 2 * norms


def test_a_layer_has_what_its_kind_has_and_no_more(weights):
    sliding, csa, hca, _ = weights.layers
    assert sliding.attention.compressor is None
    assert csa.attention.compressor is not None
    assert csa.attention.indexer is not None
    assert hca.attention.compressor is not None
    assert hca.attention.indexer is None
    assert [layer.ffn.router.table is None for layer in weights.layers] == [
        False,
        False,
        True,
        True,
    ]
    assert [layer.ffn.router.bias is None for layer in weights.layers] == [True, True, False, False]


def test_the_tree_does_not_depend_on_the_number_of_threads():
    one, many = (load_weights(open_model(GOLDEN), CPU, threads=count) for count in (1, 7))
    for (name, a), (_, b) in zip(leaves(one), leaves(many), strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), name


def test_progress_goes_from_0_to_every_byte_and_never_back():
    model, seen, threads = open_model(GOLDEN), [], set()

    def watch(done: int, total: int) -> None:
        seen.append((done, total))
        threads.add(threading.get_ident())

    load_weights(model, CPU, threads=3, progress=watch)
    done = [each for each, _ in seen]
    assert done == sorted(done)
    assert seen[0] == (0, model.tensors.used_bytes)
    assert seen[-1] == (model.tensors.used_bytes, model.tensors.used_bytes)


def test_large_tensors_are_read_and_reported_in_chunks(monkeypatch, weights):
    monkeypatch.setattr(source_module, "CHUNK_BYTES", 10_000)
    steps: list[int] = []
    chunked = load_weights(open_model(GOLDEN), CPU, progress=lambda done, _: steps.append(done))
    assert max(b - a for a, b in pairwise(steps)) == 10_000
    for (name, a), (_, b) in zip(leaves(chunked), leaves(weights), strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), name


def test_weights_on_cpu_share_the_pages_of_the_file_and_cannot_change_it(tmp_path):
    content = (GOLDEN / "model-00001-of-00001.safetensors").read_bytes()
    copy = copy_golden(tmp_path)
    weights = load_weights(open_model(copy), CPU)
    shard = copy / "model-00001-of-00001.safetensors"
    with shard.open("r+b") as stream:  # a page that nobody wrote to shows what the file has
        stored = open_model(GOLDEN).tensors.used["head.weight"]
        stream.seek(stored.offset)
        stream.write(b"\x80\x3f")
    assert weights.head.data[0, 0] == 1.0
    weights.embed[0, 0] = 7.0
    assert shard.read_bytes()[: stored.offset] == content[: stored.offset]


def copy_golden(folder: Path) -> Path:
    for file in GOLDEN.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_another_device_gets_copies_through_staging(weights):
    """The meta device keeps no bytes; that each read was made and counted is what shows."""
    model, seen = open_model(GOLDEN), []
    moved = load_weights(model, torch.device("meta"), progress=lambda done, _: seen.append(done))
    assert seen[-1] == model.tensors.used_bytes
    for (name, a), (_, b) in zip(leaves(moved), leaves(weights), strict=True):
        assert (a.device.type, a.shape, a.dtype) == ("meta", b.shape, b.dtype), name


@pytest.mark.gpu
def test_an_accelerator_gets_the_same_bytes(weights):
    device = torch.accelerator.current_accelerator()
    assert device is not None
    moved = load_weights(open_model(GOLDEN), device)
    for (name, a), (_, b) in zip(leaves(moved), leaves(weights), strict=True):
        assert a.device.type == device.type
        assert torch.equal(a.cpu().view(torch.uint8), b.view(torch.uint8)), name


def test_fp8_experts_of_the_base_variant_are_stacked_packed(tmp_path):
    config = replace(open_model(GOLDEN).config, expert_format="fp8")
    synth(config, tmp_path, tokenizer=None)
    weights = load_weights(open_model(tmp_path), CPU)
    for layer in weights.layers:
        assert isinstance(layer.ffn.experts.w2, StackedFp8)
        assert layer.ffn.experts.w2.data.shape == (4, 128, 128)
        assert layer.ffn.experts.w2.expert(3).decode().isfinite().all()


def test_an_unaligned_tensor_is_copied_and_right(tmp_path):
    copy = copy_golden(tmp_path)
    shard = copy / "model-00001-of-00001.safetensors"
    content = shard.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].rstrip() + b" " * 3  # an odd length moves all that follows
    shard.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    model = open_model(copy)
    assert model.tensors.used["hc_head_fn"].offset % 4
    moved, weights = load_weights(model, CPU), load_weights(open_model(GOLDEN), CPU)
    for (name, a), (_, b) in zip(leaves(moved), leaves(weights), strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), name


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path):
    model = open_model(copy_golden(tmp_path))
    shard = tmp_path / "model-00001-of-00001.safetensors"
    os.truncate(shard, 2_000_000)
    with pytest.raises(BadCheckpoint, match="become shorter") as caught:
        load_weights(model, torch.device("meta"))
    assert caught.value.message.startswith(str(shard))


@pytest.mark.parametrize("experts", [[1, 1], [-1, 2], [0, 4]])
def test_a_table_that_no_row_can_be_routed_by_is_named(tmp_path, experts):
    model = open_model(copy_golden(tmp_path))
    table = model.tensors.used["layers.1.ffn.gate.tid2eid"]
    assert table.shape == (320, 2)
    with table.file.open("r+b") as shard:
        shard.seek(table.offset + 7 * 16)
        shard.write(struct.pack("<2q", *experts))
    with pytest.raises(BadCheckpoint) as caught:
        load_weights(model, CPU)
    assert caught.value.message == (
        f"{table.file}: layers.1.ffn.gate.tid2eid gives token 7 the experts {experts}; "
        "wanted 2 different ones of 0 to 3; fetch the file again"
    )


def test_a_read_error_in_the_middle_is_named_and_stops_the_others(monkeypatch):
    calls = 0
    real = os.preadv

    def failing(descriptor, buffers, offset):
        nonlocal calls
        calls += 1
        if calls == 20:
            raise OSError(5, "Input/output error")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(BadCheckpoint, match="Input/output error at byte") as caught:
        load_weights(open_model(GOLDEN), CPU, threads=2)
    assert "model-00001-of-00001.safetensors" in caught.value.message
    assert calls <= 21  # the other thread may have been reading


def test_short_reads_are_continued(monkeypatch, weights):
    real = os.preadv

    def short(descriptor, buffers, offset):
        return real(descriptor, [buffers[0][:1000]], offset)

    monkeypatch.setattr(os, "preadv", short)
    loaded = load_weights(open_model(GOLDEN), CPU)
    assert torch.equal(loaded.layers[2].ffn.experts.w3.data, weights.layers[2].ffn.experts.w3.data)


def test_a_shard_that_went_away_after_the_header_pass_is_named(tmp_path):
    model = open_model(copy_golden(tmp_path))
    (tmp_path / "model-00001-of-00001.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match="No such file"):
        load_weights(model, CPU)


def test_files_are_closed_when_loading_is_over(weights):
    before = len(os.listdir("/proc/self/fd"))
    with WeightSource(torch.device("meta")) as source:
        for tensor in open_model(GOLDEN).tensors.used.values():
            source.tensor(tensor)
        source.run(threads=2)
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before
