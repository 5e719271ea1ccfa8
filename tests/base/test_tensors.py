from collections import Counter
from pathlib import Path

import pytest

from relight.base.checkpoint import read_checkpoint
from relight.base.config import read_config
from relight.base.official import V4_FLASH, V4_FLASH_BASE, V4_FLASH_DSPARK, V41_FLASH
from relight.base.tensors import (
    VISION_PREFIXES,
    backbone_tensors,
    draft_tensors,
    model_tensors,
    stage_tensors,
    vision_tensors,
)

GOLDENS = Path(__file__).parents[1] / "golden"
GOLDEN = GOLDENS / "v4" / "checkpoint"


@pytest.mark.parametrize(
    ("config", "count", "nbytes"),
    [
        (V4_FLASH, 69_187, 159_609_485_896),
        (V4_FLASH_DSPARK, 72_317, 166_878_536_440),
        (V41_FLASH, 96_085, 510_286_023_000),
    ],
)
def test_the_table_gives_the_published_number_of_tensors_and_bytes(config, count, nbytes):
    specs = list(model_tensors(config))
    assert len(specs) == len({spec.name for spec in specs}) == count
    assert sum(spec.nbytes for spec in specs) == nbytes


def test_dspark_stages_have_the_published_number_of_tensors():
    counts = [len(list(stage_tensors(V4_FLASH_DSPARK, stage))) for stage in range(3)]
    assert counts == [1_568, 1_565, 1_572]


def test_attaching_a_draft_leaves_the_backbone_as_it_is():
    assert list(backbone_tensors(V4_FLASH)) == list(backbone_tensors(V4_FLASH_DSPARK))
    assert all(spec.part == "draft" for spec in draft_tensors(V4_FLASH_DSPARK))
    assert all(spec.name.startswith("mtp.") for spec in draft_tensors(V4_FLASH_DSPARK))


@pytest.mark.parametrize("name", ["v4", "v4_dspark", "v41"])
def test_the_table_is_exactly_the_stored_golden_checkpoint(name):
    folder = GOLDENS / name / "checkpoint"
    stored = read_checkpoint(folder).tensors
    specs = {
        spec.name: (spec.dtype, spec.shape) for spec in model_tensors(read_config(folder).config)
    }
    assert specs == {name: (tensor.dtype, tensor.shape) for name, tensor in stored.items()}


def test_base_stores_the_same_experts_in_fp8():
    fp4 = {spec.name: spec for spec in model_tensors(V4_FLASH)}
    fp8 = {spec.name: spec for spec in model_tensors(V4_FLASH_BASE)}
    assert fp4.keys() == fp8.keys()
    name = "layers.5.ffn.experts.7.w2"
    assert (fp4[f"{name}.weight"].dtype, fp4[f"{name}.weight"].shape) == ("I8", (4096, 1024))
    assert (fp8[f"{name}.weight"].dtype, fp8[f"{name}.weight"].shape) == ("F8_E4M3", (4096, 2048))
    assert fp4[f"{name}.scale"].shape == (4096, 64)
    assert fp8[f"{name}.scale"].shape == (32, 16)


def test_each_kind_of_layer_has_its_own_tensors_only():
    names = Counter(
        (int(spec.name.split(".")[1]), part)
        for spec in backbone_tensors(V4_FLASH)
        for part in ("attn.compressor", "attn.indexer", "gate.tid2eid", "gate.bias")
        if spec.name.startswith("layers.") and part in spec.name
    )
    for layer in V4_FLASH.layers:
        has = [names[layer.index, part] for part in ("attn.compressor", "attn.indexer")]
        assert has == {"sliding": [0, 0], "csa": [4, 7], "hca": [4, 0]}[layer.attention]
        hashed = layer.routing == "hash"
        assert names[layer.index, "gate.tid2eid"] == hashed
        assert names[layer.index, "gate.bias"] == (not hashed)


def test_layers_without_a_draft_cost_their_share_alone():
    draft_bytes = sum(spec.nbytes for spec in draft_tensors(V4_FLASH))
    backbone_bytes = sum(spec.nbytes for spec in backbone_tensors(V4_FLASH))
    assert draft_bytes + backbone_bytes == 159_609_485_896
    assert list(draft_tensors(read_config(GOLDEN).config)) == []


def test_the_parts_of_v41_add_up_to_the_published_files():
    """Of which two n-gram tables of 264 bytes a row are 40 %, and images need 0.2 %."""
    parts = {
        "backbone": list(backbone_tensors(V41_FLASH)),
        "draft": list(draft_tensors(V41_FLASH)),
        "vision": list(vision_tensors(V41_FLASH)),
    }
    counts = {name: len(specs) for name, specs in parts.items()}
    nbytes = {name: sum(spec.nbytes for spec in specs) for name, specs in parts.items()}
    assert counts == {"backbone": 93_418, "draft": 2_401, "vision": 266}
    assert nbytes == {
        "backbone": 501_382_611_408,
        "draft": 7_932_874_632,
        "vision": 970_536_960,
    }
    tables = [spec for spec in parts["backbone"] if ".engram.embed." in spec.name]
    assert sum(spec.nbytes for spec in tables) == 264 * (384_006_168 + 384_016_682)


def test_only_what_images_need_is_named_as_vision():
    text = [*backbone_tensors(V41_FLASH), *draft_tensors(V41_FLASH)]
    assert not [spec.name for spec in text if spec.name.startswith(VISION_PREFIXES)]
    assert all(spec.name.startswith(VISION_PREFIXES) for spec in vision_tensors(V41_FLASH))
    assert list(vision_tensors(V4_FLASH)) == []


def test_each_role_of_v41_has_its_own_tensors_only():
    kinds = ("compressor.wkv", "compressor.wgate", "indexer.wk.", "indexer.wq_b.weight", "engram.q")
    found = {
        (int(spec.name.split(".")[1]), kind)
        for spec in backbone_tensors(V41_FLASH)
        for kind in kinds
        if kind in spec.name
    }
    has = {index: {kind for i, kind in found if i == index} for index in range(40)}
    assert has[2] == has[8] == set(kinds[:4])
    assert has[14] == set(kinds)
    assert has[20] == {"compressor.wkv", "indexer.wk.", "indexer.wq_b.weight"}
    assert has[24] == {"indexer.wq_b.weight"}
    assert has[1] == {"engram.q"}
    assert has[0] == has[3] == has[21] == has[39] == set()
    assert not [spec for spec in backbone_tensors(V41_FLASH) if "hc_head" in spec.name]
