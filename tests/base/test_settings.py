"""Properties of the settings: one declaration, four sources, and nothing given is ignored."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.errors import BadSetting
from relight.base.knobs import GROUPS, format_bytes, parse_bytes
from relight.base.proven import which
from relight.base.settings import KNOBS, NEEDS, Settings, load

MODEL = {"model": "folder"}


def toml(folder: Path, text: str) -> Path:
    file = folder / "relight.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_every_default_is_a_legal_value_of_its_setting() -> None:
    for knob in KNOBS.values():
        assert msgspec.convert(knob.default, knob.type) == knob.default
        given = {knob.variable: knob.show(knob.default)}
        if knob.name in NEEDS:
            other, value = NEEDS[knob.name]
            given[KNOBS[other].variable] = value
        loaded = load({}, given)
        assert getattr(loaded.settings, knob.name) == knob.default


def test_every_setting_has_a_help_and_a_known_group() -> None:
    for knob in KNOBS.values():
        assert knob.help
        assert knob.group in GROUPS


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = toml(tmp_path, "port = 1\nnum_slots = 2\nmax_queue = 3\n")
    environment = {"RELIGHT_PORT": "10", "RELIGHT_NUM_SLOTS": "20", "PATH": "/bin"}
    loaded = load(MODEL | {"port": "100"}, environment, file)
    found = loaded.settings
    assert (found.port, found.num_slots, found.max_queue, found.threads) == (100, 20, 3, 0)
    assert loaded.sources["port"] == "flag --port"
    assert loaded.sources["num_slots"] == "variable RELIGHT_NUM_SLOTS"
    assert loaded.sources["max_queue"] == f"file {file}"
    assert loaded.sources["threads"] == "default"


def test_the_table_shows_every_setting_with_value_and_source() -> None:
    table = load(MODEL | {"cache_bytes": "3GiB"}, {}).table()
    assert [row[0] for row in table] == list(KNOBS)
    assert ("cache_bytes", "3 GiB", "flag --cache-bytes") in table
    assert ("body_limit", "64 MiB", "default") in table


@pytest.mark.parametrize(
    ("flags", "environment", "parts"),
    [
        (MODEL | {"port": "65536"}, {}, ["port", "'65536'", "--port", "0 to 65535"]),
        (MODEL | {"threads": "two"}, {}, ["threads", "'two'", "0 to 1024"]),
        (MODEL | {"cache_bytes": "8GB"}, {}, ["cache_bytes", "'8GB'", "8 GiB"]),
        (MODEL | {"kernels": "triton"}, {}, ["kernels", "'triton'", "reference or cuda"]),
        (MODEL, {"RELIGHT_NUMERICS": "fast"}, ["RELIGHT_NUMERICS", "auto or official"]),
        (MODEL, {"RELIGHT_PROT": "1"}, ["RELIGHT_PROT", "did you mean RELIGHT_PORT?"]),
        (MODEL | {"spec_k": "16", "spec": "dspark"}, {}, ["spec_k", "'16'", "0 to 15"]),
        (MODEL | {"spec_threshold": "1.5"}, {}, ["spec_threshold", "'1.5'", "0.0 to 1.0"]),
        (MODEL | {"spec_threshold": "nan"}, {}, ["spec_threshold", "'nan'", "0.0 to 1.0"]),
        (MODEL | {"spec_threshold": "-0.1"}, {}, ["spec_threshold", "'-0.1'", "0.0 to 1.0"]),
        (MODEL | {"spec_k": "-1"}, {}, ["spec_k", "'-1'", "--spec-k", "0 to 15"]),
        (MODEL | {"spec_max_prompt": "-1"}, {}, ["spec_max_prompt", "'-1'", "0 to 1048576"]),
        (MODEL | {"spec_k": "3"}, {}, ["spec_k", "--spec-k", "spec is off", "set spec to dspark"]),
        (MODEL | {"max-contxt": 1}, {}, ["max-contxt", "did you mean max_context?"]),
        (
            MODEL | {"reuse_generated": "off", "prefix_cache": "off"},
            {},
            ["reuse_generated", "--reuse-generated", "prefix_cache is off"],
        ),
    ],
)
def test_what_cannot_act_is_refused_by_name_with_the_remedy(
    flags: dict[str, object], environment: dict[str, str], parts: list[str]
) -> None:
    with pytest.raises(BadSetting) as caught:
        load(flags, environment)
    for part in parts:
        assert part in caught.value.message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("prot = 1", ["prot", "did you mean port?"]),
        ("port = [1]", ["port", "[1]", "0 to 65535"]),
        ("[server]\nport = 1", ["server"]),
        ("port = ", ["is not TOML"]),
    ],
)
def test_a_settings_file_is_read_as_strictly_as_flags(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    with pytest.raises(BadSetting) as caught:
        load(MODEL, {}, toml(tmp_path, text))
    for part in parts:
        assert part in caught.value.message


def test_a_missing_settings_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be read"):
        load(MODEL, {}, tmp_path / "none.toml")


def test_a_default_of_a_setting_that_cannot_act_is_no_error() -> None:
    assert load(MODEL | {"prefix_cache": "off"}, {}).settings.reuse_generated == "on"


@given(st.integers(min_value=0, max_value=2**50))
def test_a_shown_byte_count_reads_back_as_itself(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == count


def test_settings_survive_the_process_boundary() -> None:
    settings = load(MODEL | {"num_slots": "7"}, {}).settings
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=Settings) == settings


def test_help_says_which_kernels_are_proven() -> None:
    assert f"a device has proven, {which()};" in KNOBS["kernels"].help
    assert which({}) == which({"sm_70": ()}) == "of which there are none yet"
    rows = {("norm", "step"), ("linear", "step"), ("linear", "prefill")}
    assert which({"sm_70": rows}) == "those of linear, norm (step) on sm_70"
