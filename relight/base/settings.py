"""Every setting, declared once: type, range, default, help. Knows no model, device or command line.

A value comes from a flag, else a variable RELIGHT_<NAME>, else the settings file, else the default.
A name that does not exist, a value out of range, and a setting that cannot act beside the others
are refused: nothing given is ignored. What depends on the model or the device is refused by the
room that learns it, as BadSetting too.
"""

import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from relight.base.errors import BadSetting
from relight.base.knobs import GROUPS, PREFIX, Group, Knob, declare, describe, parse_bytes
from relight.base.packaged import DEFAULT_MODEL, NAMES
from relight.base.proven import which


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings in effect. A default of 0 or "auto" means: derived from model and machine."""

    model: Annotated[
        str, declare("model", f"folder of the checkpoint, or {NAMES}, from inside the package")
    ] = DEFAULT_MODEL
    served_name: Annotated[
        str, declare("model", "model name that clients send; empty: the folder's name")
    ] = ""
    alias: Annotated[
        tuple[str, ...], declare("model", "further names that clients may send for the model")
    ] = ()
    encoding: Annotated[
        Literal["auto", "v4", "v4-first", "v4.1"],
        declare(
            "model",
            "prompt layout; auto: v4 or v4.1, as the model is; v4-first: the first release of "
            "V4-Flash, which looks like the later ones",
        ),
    ] = "auto"
    trust_tokenizer: Annotated[
        bool, declare("model", "accept marker tokens whose ids differ from the official table")
    ] = False

    device: Annotated[
        str, declare("compute", "torch device; auto: the accelerator if there is one, else cpu")
    ] = "auto"
    numerics: Annotated[
        Literal["auto", "official", "reference"],
        declare(
            "compute",
            "roundings; official: those the model was trained with (auto means this); "
            "reference: none, all state in float32",
        ),
    ] = "auto"
    kernels: Annotated[
        Literal["auto", "reference", "cuda"],
        declare(
            "compute",
            "which kernels run; reference: the plain torch definitions; auto: compiled ones that a "
            f"device has proven, {which()}; cuda: all compiled ones, where weights can take them",
        ),
    ] = "auto"
    kernel_cache: Annotated[
        str,
        declare(
            "compute",
            "folder that compiled kernels are kept in, for any number of engines; empty: "
            "~/.cache/relight/kernels",
        ),
    ] = ""
    graphs: Annotated[
        Literal["auto", "on", "off"],
        declare(
            "compute",
            "record steps of generated tokens at start and replay them; auto: on CUDA, as many as "
            "fit; no text depends on it",
        ),
    ] = "auto"
    overlap: Annotated[
        Literal["on", "off"],
        declare("compute", "plan a step while the one before it runs; off: one after the other"),
    ] = "on"
    spec: Annotated[
        Literal["off", "dspark"],
        declare(
            "compute",
            "guess tokens ahead and check them in one step; dspark: by the checkpoint's draft; no "
            "text depends on it",
        ),
    ] = "off"
    spec_k: Annotated[
        int,
        declare(
            "compute",
            "tokens that are guessed at once; 0: up to as many as the draft was trained for, by "
            "what pays for answers of each kind",
            low=0,
            high=15,
        ),
    ] = 0
    spec_threshold: Annotated[
        float,
        declare(
            "compute",
            "guesses end before the first that the draft itself thinks less likely to be right; 0: "
            "no such end where spec_k is set, else the engine picks it by what pays",
            low=0.0,
            high=1.0,
        ),
    ] = 0.0
    spec_max_prompt: Annotated[
        int,
        declare(
            "compute",
            "longest prompt, in tokens, behind which tokens are guessed; 0: any",
            low=0,
            high=2**20,
        ),
    ] = 0
    replay: Annotated[
        Literal["exact", "bounded"],
        declare(
            "compute",
            "how V4.1 reads prompts; exact: every token through all layers; bounded: approximate, "
            "only the last window of tokens through the decoder, the layers that remember no more",
        ),
    ] = "exact"
    threads: Annotated[
        int,
        declare(
            "compute",
            "CPU threads of the engine; 0: torch's choice, within a container's quota",
            low=0,
            high=1024,
        ),
    ] = 0

    engram: Annotated[
        Literal["device", "host", "mmap"],
        declare(
            "memory",
            "where V4.1's n-gram tables lie; device: with the weights; host: in RAM; mmap: in the "
            "checkpoint, of which only the rows asked for are read",
        ),
    ] = "device"
    max_context: Annotated[
        int,
        declare(
            "memory",
            "longest prompt and output together, in tokens; 0: the model's limit or what fits",
            low=0,
            high=2**20,
        ),
    ] = 0
    num_slots: Annotated[int, declare("memory", "sequences that run at once", low=1, high=4096)] = (
        32
    )
    max_step_tokens: Annotated[
        int, declare("memory", "most tokens that one step computes", low=1, high=2**16)
    ] = 2048
    cache_bytes: Annotated[
        int,
        declare("memory", "memory for pages of long context; 0: derived", low=0, unit="bytes"),
    ] = 0
    record_bytes: Annotated[
        int,
        declare(
            "memory",
            "memory for boundary records, which make prefixes reusable; 0: derived",
            low=0,
            unit="bytes",
        ),
    ] = 0
    prefix_cache: Annotated[
        Literal["on", "off"], declare("memory", "reuse the state of prompts that begin alike")
    ] = "on"
    reuse_generated: Annotated[
        Literal["on", "off"],
        declare(
            "memory",
            "reuse generated tokens, too; off: a warm prompt equals a cold one bit for bit",
        ),
    ] = "on"

    admit_output: Annotated[
        int,
        declare(
            "requests",
            "output tokens reserved when a request is admitted, if it may make more",
            low=1,
            high=2**20,
        ),
    ] = 4096
    step_target: Annotated[
        int,
        declare(
            "requests",
            "ms that a step may take while answers stream: prompts are read in chunks that fill "
            "it; 0: chunks of max_step_tokens",
            low=0,
            high=10**6,
        ),
    ] = 100
    default_max_tokens: Annotated[
        int,
        declare(
            "requests",
            "output limit of a request that sets none, in tokens; "
            "0: 8192, with thinking 65536, at most effort 131072",
            low=0,
            high=2**20,
        ),
    ] = 0
    max_output: Annotated[
        int,
        declare(
            "requests",
            "most output tokens of any request, whatever it asks; 0: what the context leaves",
            low=0,
            high=2**20,
        ),
    ] = 0
    overflow: Annotated[
        Literal["clamp", "refuse"],
        declare(
            "requests",
            "a request whose prompt and output limit exceed the context; clamp: the limit is "
            "lowered; refuse: a 400",
        ),
    ] = "clamp"
    default_sampling: Annotated[
        str,
        declare(
            "requests",
            "JSON with temperature, top_p, top_k or min_p for requests that set none; else those "
            "of generation_config.json",
        ),
    ] = ""
    default_effort: Annotated[
        Literal["auto", "minimal", "low", "medium", "high", "xhigh", "max"],
        declare(
            "requests", "reasoning effort of requests that think and set none; auto: the model's"
        ),
    ] = "auto"
    max_queue: Annotated[
        int, declare("requests", "requests that may wait; one more gets a 429", low=1, high=10**6)
    ] = 1000
    max_queue_tokens: Annotated[
        int,
        declare(
            "requests",
            "prompt tokens that may wait for their first token; more get a 429; 0: no bound",
            low=0,
        ),
    ] = 0
    max_queue_wait: Annotated[
        int,
        declare(
            "requests",
            "s that a request may have to wait, by the pace of late; beyond it a 429; 0: no bound",
            low=0,
        ),
    ] = 0
    request_timeout: Annotated[
        int,
        declare("requests", "s after which a request is given up with a 504; 0: never", low=0),
    ] = 0
    strict_fields: Annotated[
        bool, declare("requests", "refuse request fields that are otherwise accepted and ignored")
    ] = False
    body_limit: Annotated[
        int, declare("requests", "largest request body; above it a 413", low=2**10, unit="bytes")
    ] = 64 * 2**20

    host: Annotated[str, declare("server", "address to listen on")] = "127.0.0.1"
    port: Annotated[
        int, declare("server", "port to listen on; 0: any free one", low=0, high=65535)
    ] = 8000
    stuck_after: Annotated[
        int,
        declare(
            "server",
            "s without a finished step after which an engine with work is called stuck: /health "
            "says so, and the log tells where it is",
            low=1,
        ),
    ] = 60
    root_path: Annotated[
        str,
        declare("server", "path in front of all routes, such as /llm; they answer without it, too"),
    ] = ""
    api_key: Annotated[
        tuple[str, ...],
        declare("server", "keys that clients must send one of; none: anyone may", secret=True),
    ] = ()
    api_key_file: Annotated[
        str, declare("server", "file with further keys, one a line; # begins a comment")
    ] = ""
    tls_cert: Annotated[
        str, declare("server", "file with the certificate and its chain, PEM; serves https")
    ] = ""
    tls_key: Annotated[
        str, declare("server", "file with the certificate's key, PEM; empty: it is in tls_cert")
    ] = ""
    cors_origin: Annotated[
        tuple[str, ...],
        declare("server", "origins whose pages may call the server, such as https://x.org; *: all"),
    ] = ()
    allowed_host: Annotated[
        tuple[str, ...],
        declare(
            "server",
            "names by which clients may call, beside addresses, localhost and *.internal; none: "
            "any, but no other on a loopback address without keys and TLS; *: any",
        ),
    ] = ()
    keep_alive: Annotated[
        int,
        declare(
            "server", "s without a word after which a stream sends a sign of life; 0: none", low=0
        ),
    ] = 8
    client_timeout: Annotated[
        int,
        declare(
            "server",
            "s that a client may be silent while it sends a request, or take nothing of an answer; "
            "0: no bound",
            low=0,
        ),
    ] = 60
    drain: Annotated[
        int, declare("server", "s that running requests have to end after a signal", low=0)
    ] = 30
    reasoning_copy: Annotated[
        bool,
        declare(
            "server", "send reasoning under the name `reasoning`, too, beside reasoning_content"
        ),
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        declare("server", "least level that is logged"),
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], declare("server", "a line of text or a JSON object for each entry")
    ] = "text"
    log_requests: Annotated[
        Literal["off", "on", "text"],
        declare("server", "log a line for each request; text: with what was sent and answered"),
    ] = "on"


KNOBS: Mapping[str, Knob] = {
    field.name: describe(field) for field in msgspec.structs.fields(Settings)
}

NEEDS = {
    "reuse_generated": ("prefix_cache", "on"),
    "record_bytes": ("prefix_cache", "on"),
    "spec_k": ("spec", "dspark"),
    "spec_threshold": ("spec", "dspark"),
    "spec_max_prompt": ("spec", "dspark"),
}
"""A setting that acts only where another has a value: given beside another value, it is refused."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings and, for each, where its value came from."""

    settings: Settings
    sources: Mapping[str, str]

    def table(self, groups: Collection[Group] = GROUPS) -> list[tuple[str, str, str]]:
        """Rows of (name, value, source) in the order of declaration."""
        return [
            (name, knob.show(getattr(self.settings, name)), self.sources[name])
            for name, knob in KNOBS.items()
            if knob.group in groups
        ]


def load(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    file: Path | None = None,
) -> Loaded:
    """Settings from all sources. `flags` has names of settings; None there means: not given.

    Raises `BadSetting` that names the setting, the value, its source and what is wanted.
    """
    given: dict[str, tuple[object, str]] = {}
    if file is not None:
        for name, value in _read(file).items():
            given[_known(name, KNOBS, f"in {file}")] = (value, f"file {file}")
    variables = {knob.variable: knob.name for knob in KNOBS.values()}
    for variable, text in environment.items():
        if variable.startswith(PREFIX):
            name = variables[_known(variable, variables, "in the environment")]
            given[name] = (text, f"variable {variable}")
    for name, value in flags.items():
        if value not in (None, [], ()):
            knob = KNOBS[_known(name, KNOBS, "among the flags")]
            given[name] = (value, f"flag {knob.flag}")

    values = {name: _convert(KNOBS[name], value, source) for name, (value, source) in given.items()}
    settings = Settings(**values)
    _check_needs(settings, {name: source for name, (_, source) in given.items()})
    sources = {name: given[name][1] if name in given else "default" for name in KNOBS}
    return Loaded(settings, sources)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSetting(f"settings file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"settings file {file} is not TOML: {error}") from error


def _known(name: str, names: Iterable[str], where: str) -> str:
    names = list(names)
    if name in names:
        return name
    near = difflib.get_close_matches(name.replace("-", "_"), names, n=1)
    hint = f"did you mean {near[0]}?" if near else "see docs/settings.md for all names"
    raise BadSetting(f"there is no setting {name} ({where}); {hint}", param=name)


def _convert(knob: Knob, value: object, source: str) -> Any:
    try:
        if knob.kind == "bytes" and isinstance(value, str):
            value = parse_bytes(value)
        if knob.kind == "list" and isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        # Not strict: a flag or variable is text, whatever its setting's type.
        return msgspec.convert(value, knob.type, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        found = "no such thing" if knob.secret else repr(value)
        raise BadSetting(
            f"{knob.name} is {found} ({source}); wanted {knob.wanted} ({knob.help})",
            param=knob.name,
        ) from error


def _check_needs(settings: Settings, sources: Mapping[str, str]) -> None:
    for name, (other, value) in NEEDS.items():
        found = getattr(settings, other)
        if name in sources and found != value:
            raise BadSetting(
                f"{name} ({sources[name]}) cannot act while {other} is {found}; "
                f"leave it out, or set {other} to {value}",
                param=name,
            )
