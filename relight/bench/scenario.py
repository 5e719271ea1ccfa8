"""What to measure: classes of requests, how they arrive, and the limits that a result must keep.
Knows no server. A scenario is a YAML file."""

from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from relight.base.errors import BadSetting
from relight.bench.corpus import Mix, parts
from relight.bench.needle import Kind as NeedleKind

CacheMode = Literal["cold", "warm", "shared"]
MOST = 10_000_000
"""No length and no number of requests is above this: what is, was mistyped."""


Words = Annotated[str, msgspec.Meta(max_length=4000)]


class Sessions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations of an agent instead of single questions. All of a class begin with the same
    `shared_tokens` (a system prompt); each turn adds about `turn_tokens`, spread as a lognormal of
    that median and `spread`. `reply` says whose words the history holds: the server's own, or made
    ones that are the same in each run. A delay before a turn is exponential: a tool's mostly, a
    human's in `human_share` of turns. A session is given up before any turn by chance `abort`."""

    turns: int = 4
    shared_tokens: int = 0
    turn_tokens: int = 500
    spread: float = 0.0
    reply: Literal["server", "made"] = "server"
    tools: bool = False
    tool_delay_s: float = 0.0
    human_delay_s: float = 0.0
    human_share: float = 0.3
    abort: float = 0.0


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recorded arrivals: a JSONL file, its hash, and how many times faster it is replayed."""

    file: str
    hash: str = ""
    scale: float = 1.0


class Class(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of one shape. Closed when it has `users`: each sends its next request when its last
    one ended. Open when it has a `rate`: requests are due at times fixed in advance, whatever the
    server does. `burstiness` 1 is Poisson, more is more even, less is more clustered. A `trace`
    brings its own arrivals and lengths. `sessions` turns a closed class into conversations, of
    which `requests` counts all turns.

    `text` is a fixed question instead of filler, whose length nobody judges. `corpus` is that of
    this class alone: a slice. `needle` hides something to be found, of several kinds in turn, at
    `depths` in turn (0 is the beginning, 1 the end) or anywhere. `ignore_eos` false is for a
    server that refuses that field: a `fixed` length is then hoped for, and an answer without it
    still refused. `leave` is the share of requests whose client goes away in the middle."""

    name: str
    requests: int
    input_tokens: int = 0
    output_tokens: int
    users: int = 0
    rate: float = 0.0
    burstiness: float = 1.0
    trace: Trace | None = None
    sessions: Sessions | None = None
    start_s: float = 0.0
    think_s: float = 0.0
    text: Words = ""
    corpus: Mix = ""
    fixed: bool = True
    ignore_eos: bool = True
    needle: NeedleKind | list[NeedleKind] = []
    depths: list[float] = []
    leave: float = 0.0
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a valid result keeps. A share is of 1. `done` false is for a server whose dialect has no
    `[DONE]`: the body must then end whole by HTTP's own framing. `usage` false is for one that
    counts no tokens in a stream: an answer that ended by its length has those that were allowed,
    and lengths of prompts are then unknown. `mem_available_gib` and
    `swap_bytes` are floors of the server's machine, asked only when they are set."""

    failed: float = 0.0
    hits_cold: float = 0.01
    hits_warm: float = 0.5
    ttft_share: float = 0.05
    ttft_s: float = 0.020
    tokens: float = 0.005
    closure_low: float = 0.93
    closure_high: float = 1.02
    lag_share: float = 0.01
    lag_s: float = 0.002
    input_tokens: float = 0.10
    drift: float = 0.10
    preemptions: int = 0
    needle: float = 1.0
    silence_s: float = 120.0
    total_s: float = 3600.0
    canary_s: float = 60.0
    mem_available_gib: float = 0.0
    swap_bytes: int | None = None
    tuned_context: bool = False
    done: bool = True
    usage: bool = True


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts that must be seen on the server, not believed from its flags. None: not asked.
    `settings` are dotted paths in what the server tells of its configuration."""

    speculation: bool | None = None
    max_model_len: int | None = None
    slots: int | None = None
    settings: dict[str, Any] = {}


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cells` are measured one after another, each a change such as `users=8`. With `seconds`,
    closed users begin no request after so long, and `requests` are only the most there can be;
    with `until`, after the last request of that class.
    `cache` shared: hits are neither forbidden nor demanded but told."""

    name: str
    classes: list[Class]
    description: str = ""
    seed: int = 1
    corpus: Mix = "mixed"
    cache: CacheMode = "cold"
    warm_up: int = 4
    seconds: float = 0.0
    until: str = ""
    cells: list[str] = []
    body: dict[str, Any] = {}
    limits: Limits = Limits()
    expect: Expect = Expect()


SUFFIX = ".yaml"


def shipped() -> list[str]:
    folder = resources.files("relight.bench") / "scenarios"
    return sorted(entry.name.removesuffix(SUFFIX) for entry in folder.iterdir())


def load(name: str) -> Scenario:
    """A file's path, or the name of a shipped scenario. Raises BadSetting."""
    if name in shipped():
        text = (resources.files("relight.bench") / "scenarios" / f"{name}{SUFFIX}").read_text(
            "utf-8"
        )
        return parse(text, name)
    try:
        return parse(Path(name).read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as problem:
        raise BadSetting(
            f"scenario {name} cannot be read ({problem}); give a YAML file or one of: "
            f"{', '.join(shipped())}",
            param="scenario",
        ) from problem


def parse(text: str, name: str) -> Scenario:
    try:
        scenario = msgspec.yaml.decode(text, type=Scenario)
    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise BadSetting(f"scenario {name}: {problem}", param="scenario") from problem
    return check(scenario)


def check(scenario: Scenario) -> Scenario:
    """Raises BadSetting for what cannot be measured; returns its argument."""
    names = [one.name for one in scenario.classes]
    if not names or len(set(names)) < len(names):
        _refuse(scenario, f"classes are {names}; wanted one or more, each with its own name")
    if scenario.until and scenario.until not in names:
        _refuse(scenario, f"until is {scenario.until!r}; wanted one of the classes {names}")
    if "limits" in names:
        _refuse(scenario, "a class is named limits; that name is taken")
    for one in scenario.classes:
        for problem in _problems(one):
            _refuse(scenario, f"class {one.name}: {problem}")
    for field in ("messages", "stream", "stream_options", "max_tokens", "model", "n"):
        if field in scenario.body:
            _refuse(scenario, f"body.{field} is set by the measuring itself; remove it")
    for corpus in {str(c): c for c in (scenario.corpus, *corpora(scenario).values())}.values():
        parts(corpus)
    return scenario


def corpora(scenario: Scenario) -> dict[str, Mix]:
    """The corpus of each class by name."""
    return {one.name: one.corpus or scenario.corpus for one in scenario.classes}


def _problems(one: Class) -> list[str]:
    found = []
    arrivals = (one.users > 0, one.rate > 0, one.trace is not None)
    if sum(arrivals) != 1:
        found.append(
            f"users is {one.users}, rate {one.rate} and trace {one.trace}; wanted exactly one"
        )
    filled = not one.text and one.trace is None
    lows = (("requests", 1), ("input_tokens", int(filled)), ("output_tokens", 2))
    for field, low in lows:
        if getattr(one, field) < low:
            found.append(f"{field} is {getattr(one, field)}; wanted {low} or more")
        elif getattr(one, field) > MOST:
            found.append(f"{field} is {getattr(one, field):,}; wanted {MOST:,} or less")
    for field in ("burstiness", "start_s", "think_s"):
        value = getattr(one, field)
        if value < 0 or (field == "burstiness" and value == 0):
            found.append(f"{field} is {value}; wanted a positive number")
    if 0 < one.requests < one.users:
        found.append(f"requests is {one.requests} for {one.users} users; wanted one each or more")
    if not 0 <= one.leave < 1:
        found.append(f"leave is {one.leave}; wanted a share from 0 to below 1")
    if any(not 0 <= depth <= 1 for depth in one.depths):
        found.append(f"depths are {one.depths}; wanted numbers from 0 (begin) to 1 (end)")
    if one.sessions is not None:
        found += _session_problems(one, one.sessions)
    return found


def _session_problems(one: Class, sessions: Sessions) -> list[str]:
    found = []
    if not one.users or one.needle or one.text:
        found.append("sessions need users, and have neither a needle nor a text")
    if sessions.turns < 1 or one.requests % max(sessions.turns, 1):
        found.append(
            f"requests is {one.requests} and turns {sessions.turns}; wanted whole sessions"
        )
    if sessions.tools and sessions.reply == "server":
        found.append("tools need reply: made; a server's own answer holds no call to answer")
    return found


def _refuse(scenario: Scenario, why: str) -> None:
    raise BadSetting(f"scenario {scenario.name}: {why}", param="scenario")


def changed(scenario: Scenario, cell: str) -> Scenario:
    """`users=4,long.input_tokens=4096,limits.done=false`: fields of all classes, of the named one,
    or of the limits. Raises BadSetting for what is no such field."""
    limits = msgspec.to_builtins(scenario.limits)
    classes = [msgspec.to_builtins(one) for one in scenario.classes]
    for part in filter(None, cell.split(",")):
        path, _, value = part.partition("=")
        owner, _, field = path.strip().rpartition(".")
        if owner == "limits" and field in limits:
            limits[field] = value
            continue
        chosen = [one for one in classes if owner in ("", one["name"])]
        if field not in Class.__struct_fields__ or not chosen:
            raise BadSetting(
                f"cell names {path!r}; wanted [class.]field with a field of: "
                f"{', '.join(Class.__struct_fields__)}; or limits.name",
                param="cell",
            )
        for one in chosen:
            one[field] = value
            # A class is closed or open; naming one kind of arrival drops the other.
            one |= {"users": {"rate": 0.0}, "rate": {"users": 0}}.get(field, {})
    try:
        made = msgspec.convert(classes, list[Class], strict=False)
        kept = msgspec.convert(limits, Limits, strict=False)
    except msgspec.ValidationError as problem:
        raise BadSetting(f"cell {cell!r}: {problem}", param="cell") from problem
    return check(msgspec.structs.replace(scenario, classes=made, limits=kept))
