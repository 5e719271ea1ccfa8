import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relight.base.checkpoint import INDEX_NAME, check_against, open_model, read_checkpoint
from relight.base.config import read_config
from relight.base.errors import BadCheckpoint, BadConfig
from relight.base.headers import read_header

GOLDEN = Path(__file__).parents[1] / "golden" / "v4" / "checkpoint"
SHARD = "model-00001-of-00001.safetensors"
WKV = "layers.0.attn.wkv.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the golden checkpoint."""
    return copy_of(GOLDEN, tmp_path / "checkpoint")


def copy_of(source: Path, to: Path) -> Path:
    """Without the tokenizer."""
    to.mkdir()
    for name in ("config.json", INDEX_NAME, SHARD):
        shutil.copyfile(source / name, to / name)
    return to


def read_shard(file: Path) -> tuple[dict[str, Any], bytes]:
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_shard(file: Path, header: dict[str, Any] | str, data: bytes) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def edit_header(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    header, data = read_shard(folder / SHARD)
    edit(header)
    write_shard(folder / SHARD, header, data)


def edit_json(file: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(file.read_text())
    edit(data)
    file.write_text(json.dumps(data))


def split(folder: Path, second: set[str]) -> tuple[Path, Path]:
    """The checkpoint in two shards, the second with these tensors."""
    header, data = read_shard(folder / SHARD)
    (folder / SHARD).unlink()
    files = folder / "model-00001-of-00002.safetensors", folder / "model-00002-of-00002.safetensors"
    weight_map = {}
    for number, file in enumerate(files):
        entries, parts, end = {}, [], 0
        for name, entry in header.items():
            if name == "__metadata__" or (name in second) != bool(number):
                continue
            begin, stop = entry["data_offsets"]
            entries[name] = {**entry, "data_offsets": [end, end + stop - begin]}
            parts.append(data[begin:stop])
            end += stop - begin
            weight_map[name] = file.name
        write_shard(file, entries, b"".join(parts))
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return files


def test_every_tensor_is_located_where_its_bytes_are():
    tensors = read_checkpoint(GOLDEN).tensors
    header, data = read_shard(GOLDEN / SHARD)
    content = (GOLDEN / SHARD).read_bytes()
    assert len(tensors) == len(header) - 1
    for name, tensor in tensors.items():
        begin, end = header[name]["data_offsets"]
        assert content[tensor.offset : tensor.offset + tensor.nbytes] == data[begin:end]


def test_a_single_file_needs_no_index(folder):
    (folder / INDEX_NAME).unlink()
    (folder / SHARD).rename(folder / "model.safetensors")
    assert len(open_model(folder).tensors.used) == 244


def test_shards_are_read_through_the_index(folder):
    split(folder, {"embed.weight", WKV})
    model = open_model(folder)
    assert model.tensors.used[WKV].file.name == "model-00002-of-00002.safetensors"
    assert model.tensors.used_bytes == read_checkpoint(GOLDEN).nbytes


def test_draft_tensors_are_listed_as_skipped_with_their_bytes(folder):
    extra = {"dtype": "F32", "shape": [3], "data_offsets": [2994724, 2994736]}
    header, data = read_shard(folder / SHARD)
    write_shard(folder / SHARD, {**header, "mtp.0.hc_head_scale": extra}, data + bytes(12))
    edit_json(
        folder / INDEX_NAME,
        lambda index: index["weight_map"].update({"mtp.0.hc_head_scale": SHARD}),
    )
    tensors = open_model(folder).tensors
    assert [tensor.name for tensor in tensors.skipped] == ["mtp.0.hc_head_scale"]
    assert tensors.skipped_bytes == 12
    assert tensors.used_bytes == 2994724


def test_what_only_images_need_is_skipped_in_v41_and_foreign_to_v4(folder):
    extra = {"dtype": "BF16", "shape": [2], "data_offsets": [2994724, 2994728]}
    header, data = read_shard(folder / SHARD)
    write_shard(folder / SHARD, {**header, "image_start": extra}, data + bytes(4))
    edit_json(folder / INDEX_NAME, lambda index: index["weight_map"].update({"image_start": SHARD}))
    with pytest.raises(BadCheckpoint, match="image_start is extra"):
        open_model(folder)

    checkpoint = read_checkpoint(GOLDEN.parents[1] / "v41" / "checkpoint")
    tower = dict.fromkeys(("vision.norm.weight", "image_end"), checkpoint.tensors["norm.weight"])
    stored = {**checkpoint.tensors, **{n: replace(t, name=n) for n, t in tower.items()}}
    config = read_config(checkpoint.folder).config
    tensors = check_against(replace(checkpoint, tensors=stored), config)
    names = [tensor.name for tensor in tensors.skipped if not tensor.name.startswith("mtp.")]
    assert names == list(tower)
    assert len(tensors.used) + len(tensors.skipped) == len(stored)


def test_a_config_that_does_not_tell_the_expert_format_gets_the_stored_one(folder):
    edit_json(folder / "config.json", lambda config: config.pop("expert_dtype"))
    assert open_model(folder).config.expert_format == "fp4"


def drop_tensor(folder: Path) -> None:
    header, data = read_shard(folder / SHARD)
    last = max(header, key=lambda name: header[name].get("data_offsets", [0, 0])[1])
    begin, end = header.pop(last)["data_offsets"]
    write_shard(folder / SHARD, header, data[:begin] + data[end:])
    edit_json(folder / INDEX_NAME, lambda index: index["weight_map"].pop(last))


def add_tensor(folder: Path) -> None:
    header, data = read_shard(folder / SHARD)
    header["vision.patch.weight"] = {
        "dtype": "U8",
        "shape": [1],
        "data_offsets": [2994724, 2994725],
    }
    write_shard(folder / SHARD, header, data + b"x")
    edit_json(
        folder / INDEX_NAME,
        lambda index: index["weight_map"].update({"vision.patch.weight": SHARD}),
    )


def reshape(folder: Path) -> None:
    edit_header(folder, lambda header: header[WKV].update(shape=[64, 256]))


def retype(folder: Path) -> None:
    edit_header(folder, lambda header: header[WKV].update(dtype="I8"))


def truncate(folder: Path) -> None:
    content = (folder / SHARD).read_bytes()
    (folder / SHARD).write_bytes(content[:-1000])


def truncate_inside_header(folder: Path) -> None:
    (folder / SHARD).write_bytes((folder / SHARD).read_bytes()[:5000])


def truncate_to_nothing(folder: Path) -> None:
    (folder / SHARD).write_bytes(b"\x08")


def announce_long_header(folder: Path) -> None:
    content = (folder / SHARD).read_bytes()
    (folder / SHARD).write_bytes((1 << 62).to_bytes(8, "little") + content[8:])


def append_bytes(folder: Path) -> None:
    with (folder / SHARD).open("ab") as stream:
        stream.write(b"rubbish")


def damage_header(folder: Path) -> None:
    content = bytearray((folder / SHARD).read_bytes())
    content[8:10] = b"[{"
    (folder / SHARD).write_bytes(content)


def header_of_list(folder: Path) -> None:
    write_shard(folder / SHARD, "[]", b"")


def overlap(folder: Path) -> None:
    def shift(header: dict[str, Any]) -> None:
        begin, end = header[WKV]["data_offsets"]
        header[WKV]["data_offsets"] = [begin - 16, end - 16]

    edit_header(folder, shift)


def reach_beyond_the_file(folder: Path) -> None:
    def shift(header: dict[str, Any]) -> None:
        last = header["layers.3.ffn.experts.3.w3.weight"]
        last["data_offsets"] = [offset + 2**40 for offset in last["data_offsets"]]

    edit_header(folder, shift)


def wrong_extent(folder: Path) -> None:
    def stretch(header: dict[str, Any]) -> None:
        header[WKV]["data_offsets"][1] += 1

    edit_header(folder, stretch)


def negative_shape(folder: Path) -> None:
    edit_header(folder, lambda header: header[WKV].update(shape=[-128, -128]))


def endless_shape(folder: Path) -> None:
    edit_header(folder, lambda header: header[WKV].update(shape=[2**62] * 300))


def unknown_dtype(folder: Path) -> None:
    edit_header(folder, lambda header: header[WKV].update(dtype="F7"))


def entry_without_offsets(folder: Path) -> None:
    edit_header(folder, lambda header: header[WKV].pop("data_offsets"))


def repeat_in_header(folder: Path) -> None:
    header, data = read_shard(folder / SHARD)
    text = json.dumps(header)
    entry = json.dumps(header[WKV])
    write_shard(folder / SHARD, f'{text[:-1]}, "{WKV}": {entry}}}', data)


def drop_index(folder: Path) -> None:
    (folder / INDEX_NAME).unlink()


def break_index(folder: Path) -> None:
    text = (folder / INDEX_NAME).read_text()
    (folder / INDEX_NAME).write_text(text[: len(text) // 2])


def index_in_utf16(folder: Path) -> None:
    (folder / INDEX_NAME).write_bytes(b"\xff\xfe\x00\xd8")


def empty_index(folder: Path) -> None:
    (folder / INDEX_NAME).write_text('{"metadata": {}}')


def index_out_of_the_folder(folder: Path) -> None:
    edit_json(
        folder / INDEX_NAME, lambda index: index["weight_map"].update({WKV: "../other.safetensors"})
    )


def index_names_no_file(folder: Path) -> None:
    edit_json(folder / INDEX_NAME, lambda index: index["weight_map"].update({WKV: "a\0b"}))


def forget_in_index(folder: Path) -> None:
    edit_json(folder / INDEX_NAME, lambda index: index["weight_map"].pop(WKV))


def index_lists_what_is_nowhere(folder: Path) -> None:
    edit_json(
        folder / INDEX_NAME, lambda index: index["weight_map"].update({"ghost.weight": SHARD})
    )


def drop_shard(folder: Path) -> None:
    split(folder, {WKV})[1].unlink()


def swap_in_index(folder: Path) -> None:
    first, _ = split(folder, {WKV, "embed.weight"})
    edit_json(folder / INDEX_NAME, lambda index: index["weight_map"].update({WKV: first.name}))


def tensor_in_two_shards(folder: Path) -> None:
    _, second = split(folder, {WKV, "embed.weight"})
    header, data = read_shard(second)
    header["norm.weight"] = {
        "dtype": "BF16",
        "shape": [128],
        "data_offsets": [len(data), len(data) + 256],
    }
    write_shard(second, header, data + bytes(256))


def shard_of_another_model(folder: Path) -> None:
    _, second = split(folder, {WKV, "embed.weight"})
    alien = {"model.q_proj.weight": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}
    write_shard(second, alien, bytes(4))


def shard_of_a_wider_model(folder: Path) -> None:
    second = split(folder, {f"layers.1.{name}.weight" for name in ("attn_norm", "ffn_norm")})[1]
    header, data = read_shard(second)
    end = 0
    for name in sorted(header):
        header[name].update(shape=[256], data_offsets=[end, end + 512])
        end += 512
    write_shard(second, header, data + data)


def empty_the_folder(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def drop_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def drop_the_folder(folder: Path) -> None:
    shutil.rmtree(folder)


TEMPLATE = [
    # how it is broken, file at fault, what is found, what is wanted
    (drop_tensor, "", "layers.3.ffn.experts.3.w3.weight is missing", "I8 [128, 64]"),
    (add_tensor, SHARD, "vision.patch.weight is extra", "no such tensor"),
    (reshape, SHARD, f"{WKV} is F8_E4M3 [64, 256]", "F8_E4M3 [128, 128]"),
    (retype, SHARD, f"{WKV} is I8 [128, 128]", "F8_E4M3 [128, 128]"),
    (truncate, SHARD, "is truncated: it has 3,017,684 bytes", "3,018,684 bytes"),
    (truncate_inside_header, SHARD, "announces a header of 23,952", "fits in the file"),
    (truncate_to_nothing, SHARD, "of 1 bytes", "a header that fits"),
    (announce_long_header, SHARD, "4,611,686,018,427,387,904", "fits in the file"),
    (append_bytes, SHARD, "has 3,018,691 bytes", "3,018,684 bytes"),
    (damage_header, SHARD, "bad JSON", "well-formed JSON"),
    (header_of_list, SHARD, "a header that is no object", "tensor names"),
    (overlap, SHARD, f"{WKV} at byte", "it at byte 1,316,896"),
    (reach_beyond_the_file, SHARD, "leaves a gap behind", "it at byte"),
    (wrong_extent, SHARD, f"gives {WKV} the bytes", "16,384 bytes"),
    (negative_shape, SHARD, f"describes {WKV} badly", "dtype, shape"),
    (endless_shape, SHARD, f"describes {WKV} badly", "dtype, shape"),
    (unknown_dtype, SHARD, f"{WKV} in dtype F7", "F8_E4M3"),
    (entry_without_offsets, SHARD, f"describes {WKV} badly", "data_offsets"),
    (repeat_in_header, SHARD, f"{WKV} appears twice", "well-formed JSON"),
    (drop_index, INDEX_NAME, "is missing beside 1 shards", "model.safetensors"),
    (break_index, INDEX_NAME, "bad JSON", "well-formed JSON"),
    (index_in_utf16, INDEX_NAME, "bad JSON", "well-formed JSON"),
    (empty_index, INDEX_NAME, "has no weight_map", "tensor name to shard name"),
    (index_out_of_the_folder, INDEX_NAME, "'../other.safetensors'", "a file beside it"),
    (index_names_no_file, INDEX_NAME, "'a\\x00b'", "a file beside it"),
    (forget_in_index, SHARD, f"holds {WKV} as well", "the index lacks"),
    (index_lists_what_is_nowhere, SHARD, "lacks ghost.weight", INDEX_NAME),
    (drop_shard, "model-00002-of-00002", "is missing", "every shard"),
    (swap_in_index, "model-00001-of-00002", f"lacks {WKV}", INDEX_NAME),
    (tensor_in_two_shards, "model-00002-of-00002", "holds norm.weight as well", "model-00001"),
    (shard_of_another_model, "model-00002-of-00002", "holds none of the 2", "of another model"),
    (shard_of_a_wider_model, "model-00002-of-00002", "is a shard of another model", "BF16 [128]"),
    (empty_the_folder, "config.json", "not found", "config.json of a DeepSeek-V4"),
    (drop_config, "config.json", "not found", "config.json of a DeepSeek-V4"),
    (drop_the_folder, "checkpoint", "is not a folder", "the folder of a checkpoint"),
]


@pytest.mark.parametrize(
    ("damage", "file", "found", "wanted"), TEMPLATE, ids=[case[0].__name__ for case in TEMPLATE]
)
def test_damage_is_named_with_file_found_wanted_and_remedy(folder, damage, file, found, wanted):
    damage(folder)
    with pytest.raises((BadCheckpoint, BadConfig)) as caught:
        open_model(folder)
    message = caught.value.message
    assert message.startswith(str(folder))
    assert file in message.split(":")[0]
    assert found in message
    assert wanted in message
    assert "; wanted " in message
    assert any(verb in message for verb in ("fetch", "give", "use the config.json"))


def test_an_unreadable_shard_is_named(folder):
    (folder / SHARD).unlink()
    (folder / SHARD).mkdir()
    with pytest.raises(BadCheckpoint, match="cannot be read"):
        read_header(folder / SHARD)


def test_a_checkpoint_of_other_sizes_is_told_from_a_damaged_one(folder):
    edit_json(folder / "config.json", lambda config: config.update(hidden_size=256))
    with pytest.raises(BadCheckpoint, match="is a shard of another model"):
        open_model(folder)


def test_many_faults_are_shown_in_part_and_counted(folder):
    config = read_config(folder).config
    checkpoint = read_checkpoint(folder)
    few = {name: tensor for name, tensor in checkpoint.tensors.items() if "layers.2" not in name}
    with pytest.raises(BadCheckpoint, match=r"and 49 more") as caught:
        check_against(type(checkpoint)(checkpoint.folder, checkpoint.files, few), config)
    assert caught.value.message.count("is missing") == 8


@pytest.mark.parametrize("position", range(0, 24_000, 997))
def test_no_flipped_byte_of_a_header_escapes_as_another_kind_of_error(folder, position):
    content = bytearray((folder / SHARD).read_bytes())
    content[position] ^= 0x15
    (folder / SHARD).write_bytes(content)
    with contextlib.suppress(BadCheckpoint):  # the format name in __metadata__ may be anything
        open_model(folder)


def test_json_nested_too_deep_is_bad_json(folder):
    write_shard(folder / SHARD, '{"a":' + "[" * 100_000, b"")
    with pytest.raises(BadCheckpoint, match="bad JSON"):
        open_model(folder)


# -- V4.1: tables, and drafts of another kind or revision

V41 = GOLDEN.parents[1] / "v41" / "checkpoint"
TABLE = "layers.4.engram.embed"


@pytest.fixture
def v41(tmp_path: Path) -> Path:
    """A copy of the golden V4.1, in two shards: the second has the n-gram tables."""
    copy = copy_of(V41, tmp_path / "v41")
    header, _ = read_shard(copy / SHARD)
    split(copy, {name for name in header if ".engram.embed." in name})
    return copy


def lose_the_tables(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def forget_a_table(folder: Path) -> None:
    """The shard, too, is from a revision without it."""
    drop(folder, f"{TABLE}.weight", "model-00002-of-00002.safetensors")


def index_without_the_draft(folder: Path) -> None:
    edit_json(
        folder / INDEX_NAME,
        lambda index: index.update(
            weight_map={n: s for n, s in index["weight_map"].items() if not n.startswith("mtp.")}
        ),
    )


def index_of_a_revision_with_more_shards(folder: Path) -> None:
    def rename(index: dict[str, Any]) -> None:
        for name, shard in index["weight_map"].items():
            index["weight_map"][name] = shard.replace("of-00002", "of-00048")

    edit_json(folder / INDEX_NAME, rename)


def index_that_has_the_tables_elsewhere(folder: Path) -> None:
    moved = {f"{TABLE}.scale": "model-00001-of-00002.safetensors"}
    edit_json(folder / INDEX_NAME, lambda index: index["weight_map"].update(moved))


def tables_of_another_vocabulary(folder: Path) -> None:
    def shrink(config: dict[str, Any]) -> None:
        config["text_config"].update(engram_vocab_size=100, engram_num_embeddings=[762, 940])

    edit_json(folder / "config.json", shrink)


def drop(folder: Path, name: str, shard: str) -> None:
    header, data = read_shard(folder / shard)
    begin, end = header.pop(name)["data_offsets"]
    for entry in header.values():
        if entry.get("data_offsets", [0])[0] >= end:
            entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]
    write_shard(folder / shard, header, data[:begin] + data[end:])
    edit_json(folder / INDEX_NAME, lambda index: index["weight_map"].pop(name))


V41_TEMPLATE = [
    (lose_the_tables, "model-00002-of-00002", "is missing", "every shard that the index names"),
    (forget_a_table, "v41", f"{TABLE}.weight is missing", "F8_E4M3 [1552, 32]"),
    (index_without_the_draft, "model-00001-of-00002", "as well", "no tensor that the index lacks"),
    (index_of_a_revision_with_more_shards, "model-00001-of-00048", "is missing", "every shard"),
    (index_that_has_the_tables_elsewhere, "model-00001", f"lacks {TABLE}.scale", INDEX_NAME),
    (tables_of_another_vocabulary, "config.json", "engram_num_embeddings", "sums of the primes"),
]


@pytest.mark.parametrize(
    ("damage", "file", "found", "wanted"),
    V41_TEMPLATE,
    ids=[case[0].__name__ for case in V41_TEMPLATE],
)
def test_damage_to_a_v41_is_named_with_file_found_wanted_and_remedy(
    v41, damage, file, found, wanted
):
    assert open_model(v41).tensors.used[f"{TABLE}.weight"].file.name.startswith("model-00002")
    damage(v41)
    with pytest.raises((BadCheckpoint, BadConfig)) as caught:
        open_model(v41)
    message = caught.value.message
    assert message.startswith(str(v41))
    assert file in message.split(":")[0]
    assert found in message
    assert wanted in message
    assert "; wanted " in message
    assert any(verb in message for verb in ("fetch", "use the config.json", "correct one of"))
