import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from relight.base.errors import BadCheckpoint
from relight.base.official import V4_FLASH, V4_FLASH_DSPARK, V41_FLASH
from relight.lab.inspect import Inspection, inspect, show
from relight.lab.synth import TINY, synth

GOLDEN = Path(__file__).parents[1] / "golden" / "v4" / "checkpoint"


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Inspection:
    folder = tmp_path_factory.mktemp("official")
    synth(V4_FLASH_DSPARK, folder, sparse=True, tokenizer=None)
    return inspect(folder)


def shown(inspection: Inspection) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    show(inspection, console)
    return console.export_text()


def test_the_official_model_is_named_with_its_layers_and_bytes(official):
    found = official
    assert found.model == "V4-Flash with DSpark (0731)"
    assert found.attention == {"sliding": 2, "csa": 21, "hca": 20}
    assert found.routing == {"hash": 3, "bias": 40}
    assert (found.num_tensors + found.skipped_tensors) == 72_317
    assert (found.nbytes + found.skipped_bytes) == 166_878_536_440
    assert (found.draft, found.num_draft_stages) == ("dspark", 3)
    assert found.skipped_tensors == 1_568 + 1_565 + 1_572


def test_parts_add_up_to_what_is_loaded(official):
    found = official
    assert sum(part.nbytes for part in found.parts) == found.nbytes
    assert sum(part.num_tensors for part in found.parts) == found.num_tensors
    experts = next(part for part in found.parts if part.part == "routed experts")
    assert experts.nbytes > 0.9 * found.nbytes


def test_experts_that_config_does_not_describe_are_told_by_how_they_are_stored(tmp_path):
    config = replace(TINY, vocab_size=320, expert_format="fp8")
    synth(config, tmp_path, tokenizer=None)
    data = json.loads((tmp_path / "config.json").read_text())
    del data["expert_dtype"]
    (tmp_path / "config.json").write_text(json.dumps(data))
    found = inspect(tmp_path)
    assert found.expert_format == "fp8"
    assert found.assumed_fields == ("expert_dtype",)


def test_the_table_shows_what_the_backbone_does_not_read_with_bytes(official):
    text = shown(official)
    assert "V4-Flash with DSpark" in text
    assert "dspark, 3 stages, loaded with --spec dspark" in text
    assert "with --spec dspark (mtp.*)" in text
    assert "10,862,838,300" in text
    assert "166,878,536,440" in text
    assert "43: 2 sliding, 21 csa, 20 hca" in text


def test_a_draft_that_nothing_runs_is_said_to_be_never_loaded(tmp_path):
    synth(V4_FLASH, tmp_path, sparse=True, tokenizer=None)
    text = shown(inspect(tmp_path))
    assert "mtp1, 1 stage, never loaded" in text
    assert "skipped (mtp.*)" in text


@pytest.fixture(scope="module")
def v41(tmp_path_factory: pytest.TempPathFactory) -> Inspection:
    folder = tmp_path_factory.mktemp("v41")
    synth(V41_FLASH, folder, sparse=True, tokenizer=None)
    return inspect(folder)


def test_v41_is_named_with_roles_tables_and_what_is_skipped(v41):
    assert v41.model == "V4.1-Flash"
    assert v41.attention == {"sliding": 2, "full": 4, "reuse": 30, "reindex": 4}
    assert v41.num_tensors + v41.skipped_tensors == 96_085
    assert v41.nbytes + v41.skipped_bytes == 510_286_023_000
    skipped = {part.part: (part.num_tensors, part.nbytes) for part in v41.skipped}
    assert skipped == {"mtp.*": (2_401, 7_932_874_632), "vision": (266, 970_536_960)}
    engram = next(part for part in v41.parts if part.part == "engram")
    assert engram.nbytes > 264 * 768_000_000


def test_v41_says_that_images_are_not_read(v41):
    text = shown(v41)
    assert "refused, the tower is not loaded" in text
    assert "skipped (vision)" in text
    assert "970,536,960" in text


def test_unknown_fields_are_shown_by_name(tmp_path):
    for file in GOLDEN.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "flux_capacitor": 1.21}))
    found = inspect(tmp_path)
    assert found.unknown_fields == ("flux_capacitor",)
    assert "flux_capacitor" in shown(found)


def test_the_json_form_is_json_with_the_same_figures():
    found = inspect(GOLDEN)
    data = json.loads(json.dumps(found.as_json()))
    assert data["nbytes"] == 2_994_724
    assert data["parts"][0] == {"part": "embed", "num_tensors": 1, "nbytes": 81_920}
    assert data["model"] == "V4, not of a published size"


def test_a_damaged_checkpoint_is_refused_as_the_loader_does(tmp_path):
    for file in GOLDEN.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:-1])
    (tmp_path / "config.json").write_bytes((GOLDEN / "config.json").read_bytes())
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model-00001-of-00001.safetensors").rename(tmp_path / "model.safetensors")
    with pytest.raises(BadCheckpoint, match="is truncated"):
        inspect(tmp_path)


def test_inspect_does_not_import_torch():
    code = "import sys, relight.lab.inspect; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
