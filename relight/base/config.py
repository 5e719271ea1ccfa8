"""Reads a config.json strictly, of V4 or V4.1. Knows no tensor and no torch."""

from dataclasses import dataclass
from pathlib import Path

from relight.base.config_v4 import parse_v4
from relight.base.config_v41 import parse_v41
from relight.base.errors import BadConfig
from relight.base.fields import Fields, load_json
from relight.base.files import read_regular
from relight.base.specs import PAGE_TOKENS as PAGE_TOKENS  # whoever reads a config needs these
from relight.base.specs import AttentionKind as AttentionKind
from relight.base.specs import CandidateSpec as CandidateSpec
from relight.base.specs import DraftSpec as DraftSpec
from relight.base.specs import EngramSpec as EngramSpec
from relight.base.specs import LayerSpec as LayerSpec
from relight.base.specs import ModelConfig as ModelConfig
from relight.base.specs import RopeScaling as RopeScaling
from relight.base.specs import VisionSpec as VisionSpec


@dataclass(frozen=True, slots=True)
class ParsedConfig:
    """`unknown` lists fields that the reader does not know, `assumed` those that it filled in."""

    config: ModelConfig
    unknown: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


def read_config(path: Path) -> ParsedConfig:
    """Reads a config.json, or the one in a folder. Raises BadConfig."""
    file = path / "config.json" if path.is_dir() else path
    try:
        data = load_json(read_regular(file))
    except FileNotFoundError:
        raise BadConfig(
            f"{file}: not found; wanted the config.json of a DeepSeek-V4 checkpoint; "
            "give the folder that holds config.json and the .safetensors files",
            param="model",
        ) from None
    except OSError as error:
        raise BadConfig(
            f"{file}: cannot be read ({error.strerror}); wanted a readable file; check its rights",
            param="model",
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadConfig(
            f"{file}: is not JSON ({error}); wanted one JSON object; fetch the file again",
            param="model",
        ) from error
    return parse_config(data, source=str(file))


def parse_config(data: object, source: str = "config.json") -> ParsedConfig:
    """Turns the fields of a config.json into a ModelConfig. Raises BadConfig by field name."""
    fields = Fields(data, source)
    kind = fields.raw("model_type")
    if kind == "deepseek_v41_text":
        fields.refuse(
            "model_type",
            "'deepseek_v41', with a text_config inside",
            "this is the inner part of a V4.1 config.json; give the whole file",
        )
    parse = parse_v41 if kind == "deepseek_v41" or "text_config" in fields else parse_v4
    return ParsedConfig(*parse(fields))
