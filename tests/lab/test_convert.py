import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.config import read_config
from relight.base.errors import BadCheckpoint, BadConfig, BadSetting
from relight.base.tensors import backbone_tensors
from relight.kernels.codec import Fp4Weight, Fp8Weight
from relight.lab.convert import convert
from relight.lab.tiles import fp8_tiles, fp8_untile
from relight.lab.transformers_form import origins

GOLDEN = Path(__file__).parents[1] / "golden" / "v4" / "checkpoint"
EXPERTS = 4


def values(folder: Path) -> dict[str, Tensor]:
    """The values of an official checkpoint in float32, by official name without scales."""
    stored: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        stored |= load_file(file)
    decoded = {}
    for name, tensor in stored.items():
        scale = stored.get(name.removesuffix("weight") + "scale")
        if scale is None:
            if not name.endswith(".scale"):
                decoded[name] = tensor if tensor.dtype == torch.int64 else tensor.float()
        elif tensor.dtype == torch.int8:
            weight = Fp4Weight(tensor.view(torch.uint8), scale.view(torch.uint8))
            decoded[name] = weight.decode()
        else:
            block = read_config(folder).config.fp8_block
            tile = (1, 32) if ".engram.embed." in name else (block, block)
            decoded[name] = fp8_untile(tensor.view(torch.uint8), scale.view(torch.uint8), tile)
    return decoded


def as_saved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names that save_pretrained writes."""
    renamed = {
        "embed.weight": "model.embed_tokens.weight",
        "head.weight": "head.weight",
        "hc_head_fn": "model.hc_head.hc_fn",
        "hc_head_base": "model.hc_head.hc_base",
        "hc_head_scale": "model.hc_head.hc_scale",
    }
    return {
        renamed.get(name, "model." + name.replace("attn.kv_norm", "attn.norm")): tensor
        for name, tensor in tensors.items()
    }


def as_state_dict(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of a module's state dict, with experts stacked, gate rows first."""
    state: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if ".experts." not in name:
            state[list(origins(name))[-1].name] = tensor
    for layer in range(4):
        experts = f"layers.{layer}.ffn.experts"
        gate_up = [
            torch.cat([tensors[f"{experts}.{e}.{m}.weight"] for m in ("w1", "w3")])
            for e in range(EXPERTS)
        ]
        down = [tensors[f"{experts}.{e}.w2.weight"] for e in range(EXPERTS)]
        prefix = f"model.layers.{layer}.mlp.experts"
        state[f"{prefix}.gate_up_proj"] = torch.stack(gate_up)
        state[f"{prefix}.down_proj"] = torch.stack(down)
    return state


def transformers_config() -> dict[str, Any]:
    """What transformers makes of the golden config.json when it saves it."""
    data = json.loads((GOLDEN / "config.json").read_text())
    scaling = data.pop("rope_scaling")
    for name in ("quantization_config", "num_hash_layers", "topk_method", "compress_ratios"):
        del data[name]
    kinds = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")
    return {
        **data,
        "layer_types": [kinds[0], kinds[1], kinds[2], kinds[1]],
        "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"],
        "compress_rates": {kinds[1]: 4, kinds[2]: 128},
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            "compress": {
                **scaling,
                "rope_type": "yarn",
                "rope_theta": 160000.0,
                "partial_rotary_factor": 0.5,
                "attention_factor": 1.0,
            },
        },
        "partial_rotary_factor": 0.5,
        "output_router_logits": False,
        "mlp_bias": False,
    }


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None = None) -> Path:
    folder.mkdir()
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or transformers_config()))
    return folder


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return values(GOLDEN)


Names = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@pytest.mark.parametrize("names", [as_saved, as_state_dict, dict], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_official_values_come_back_exactly_from_every_set_of_names(tmp_path, golden, names, dtype):
    kept = ("hc_", "sink", "ape", "bias")  # float32 in transformers, too
    tensors = {
        name: t if t.dtype == torch.int64 or any(k in name for k in kept) else t.to(dtype)
        for name, t in golden.items()
    }
    source = write(tmp_path / "source", names(tensors))
    done = convert(source, tmp_path / "out")
    assert done.losses == ()
    back = values(tmp_path / "out")
    assert back.keys() == golden.keys()
    for name, tensor in golden.items():
        assert torch.equal(back[name], tensor), name


def test_the_converted_config_is_the_official_one(tmp_path, golden):
    convert(write(tmp_path / "source", as_saved(golden)), tmp_path / "out")
    assert read_config(tmp_path / "out").config == read_config(GOLDEN).config
    assert open_model(tmp_path / "out").config.draft.kind == "none"


def test_short_hca_windows_of_test_models_become_ratios(tmp_path, golden):
    config = transformers_config()
    config["compress_rates"]["heavily_compressed_attention"] = 16
    tensors = {
        name: t[:16] if name == "layers.2.attn.compressor.ape" else t for name, t in golden.items()
    }
    convert(write(tmp_path / "source", as_saved(tensors), config), tmp_path / "out")
    assert [layer.ratio for layer in read_config(tmp_path / "out").config.layers] == [0, 4, 16, 4]


def off_grid(golden: dict[str, Tensor]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        name: t
        if t.dtype == torch.int64
        else t + 0.01 * t.std() * torch.randn(t.shape, generator=generator)
        if t.numel() > 1
        else t
        for name, t in golden.items()
    }


def test_weights_off_the_grid_are_refused_by_name_and_leave_nothing(tmp_path, golden):
    source = write(tmp_path / "source", as_saved(off_grid(golden)))
    with pytest.raises(BadCheckpoint, match=r"loses \d+\.\d+% .*; give --quantise") as caught:
        convert(source, tmp_path / "out")
    assert str(source / "model.safetensors") in caught.value.message
    assert list((tmp_path / "out").iterdir()) == []


def test_rounding_is_reported_by_part_and_bounded(tmp_path, golden):
    noisy = off_grid(golden)
    source = write(tmp_path / "source", as_saved(noisy))
    losses = {loss.part: loss for loss in convert(source, tmp_path / "out", quantise=True).losses}
    assert 0 < losses["routed experts"].relative_rms < 0.2
    assert 0 < losses["attention"].relative_rms < 0.05
    assert 0 < losses["embed"].relative_rms < 0.004
    back = values(tmp_path / "out")
    worst = losses["attention"].worst_tensor
    error = (back[worst] - noisy[worst]).norm() / noisy[worst].norm()
    assert error == pytest.approx(losses["attention"].relative_rms)


def test_a_missing_an_extra_and_a_misshaped_tensor_are_named_together(tmp_path, golden):
    tensors = as_saved(golden)
    del tensors["model.norm.weight"]
    tensors["model.rotary.inv_freq"] = torch.zeros(4)
    tensors["head.weight"] = tensors["head.weight"][:100]
    with pytest.raises(BadCheckpoint) as caught:
        convert(write(tmp_path / "source", tensors), tmp_path / "out")
    message = caught.value.message
    assert "norm.weight is missing" in message
    assert "model.rotary.inv_freq is extra" in message
    assert "head.weight is F32 [100, 128]; wanted F32 or BF16 or F16 [320, 128]" in message
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_is_packed_already_is_refused(tmp_path):
    with pytest.raises(BadCheckpoint, match="packed already"):
        convert(GOLDEN, tmp_path / "out")


def test_the_source_is_never_overwritten(tmp_path, golden):
    source = write(tmp_path / "source", as_saved(golden))
    with pytest.raises(BadSetting, match="source"):
        convert(source, source, force=True)
    assert (source / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_types", ["sliding_attention", "linear_attention"]),
        ("layer_types", None),
        ("mlp_layer_types", ["moe", "hash_moe", "moe", "moe"]),
        ("rope_parameters", {"rope_type": "yarn"}),
        ("rope_parameters", None),
    ],
)
def test_a_config_that_cannot_be_translated_is_refused_by_field(tmp_path, golden, field, value):
    config = {**transformers_config(), field: value}
    with pytest.raises(BadConfig, match="; wanted") as caught:
        convert(write(tmp_path / "source", as_saved(golden), config), tmp_path / "out")
    assert caught.value.param == field


def test_unknown_fields_are_passed_on(tmp_path, golden):
    config = {**transformers_config(), "flux_capacitor": 1.21}
    done = convert(write(tmp_path / "source", as_saved(golden), config), tmp_path / "out")
    assert done.unknown_fields == ("flux_capacitor",)


def test_tokenizer_files_come_along(tmp_path, golden):
    source = write(tmp_path / "source", as_saved(golden))
    (source / "tokenizer.json").write_text("{}")
    convert(source, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"


def test_every_official_name_has_places_of_its_own():
    specs = [s for s in backbone_tensors(read_config(GOLDEN).config) if s.dtype != "F8_E8M0"]
    places = [place for spec in specs for place in set(origins(spec.name))]
    assert len(places) == len(set(places))


@pytest.mark.parametrize("shape", [(128, 128), (1, 1), (129, 255), (300, 64)])
def test_fp8_tiles_never_clip_and_keep_half_a_step(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3
    data, scale = fp8_tiles(matrix, (128, 128))
    decoded = Fp8Weight(data, scale, 128).decode()
    assert scale.shape == (-(-shape[0] // 128), -(-shape[1] // 128))
    step = (matrix.abs() * 2**-4).clamp(min=float(matrix.abs().max()) * 2**-17)
    assert ((decoded - matrix).abs() <= step).all()


def test_fp8_tiles_of_zeros_and_of_tiny_values_are_exact():
    for matrix in (torch.zeros(128, 128), torch.full((128, 128), 2.0**-100)):
        assert torch.equal(Fp8Weight(*fp8_tiles(matrix, (128, 128)), 128).decode(), matrix)


V41 = GOLDEN.parents[1] / "v41" / "checkpoint"


@pytest.mark.parametrize("prefix", ["", "model."])
def test_values_of_v41_come_back_exactly_with_the_draft_and_without_images(tmp_path, prefix):
    tensors = values(V41)
    source = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    source |= {f"{prefix}image_start": torch.ones(64), f"{prefix}vision.norm.weight": torch.ones(8)}
    data = json.loads((V41 / "config.json").read_text())
    del data["quantization_config"]
    done = convert(write(tmp_path / "source", source, data), tmp_path / "out")
    assert (done.losses, done.unknown_fields, done.left_out) == ((), (), 2)
    assert read_config(tmp_path / "out").config == read_config(V41).config
    back = values(tmp_path / "out")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor), name


def test_v41_under_other_names_is_refused_by_name(tmp_path):
    tensors = values(V41)
    tensors["lm_head.weight"] = tensors.pop("head.weight")
    with pytest.raises(BadCheckpoint, match=r"head\.weight is missing; .*lm_head\.weight is e"):
        convert(
            write(tmp_path / "source", tensors, json.loads((V41 / "config.json").read_text())),
            tmp_path / "out",
        )


@pytest.mark.parametrize("saved", [True, False], ids=["save_pretrained", "state_dict"])
def test_what_transformers_itself_writes_is_read(tmp_path, golden, saved):
    import transformers

    data = json.loads((GOLDEN / "config.json").read_text())
    del data["quantization_config"]
    data["rope_scaling"]["original_max_position_embeddings"] = 256  # 16 × 256 is max_position
    model = transformers.DeepseekV4ForCausalLM(transformers.DeepseekV4Config(**data))
    state = as_state_dict(golden)
    model.load_state_dict(state, strict=True)
    source = tmp_path / "source"
    if saved:
        model.save_pretrained(source)
    else:
        write(source, model.state_dict())
        model.config.save_pretrained(source)
    done = convert(source, tmp_path / "out")
    assert done.losses == ()
    assert done.unknown_fields == ()
    back = values(tmp_path / "out")
    for name, tensor in golden.items():
        assert torch.equal(back[name], tensor), name
    official = read_config(GOLDEN).config
    assert read_config(tmp_path / "out").config.layers == official.layers
