"""What to measure: classes of requests, how they arrive, and the limits that a result must keep.
Knows no server. A scenario is a TOML file: the standard library reads it, and YAML would be one
more dependency to say the same."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from relight.base.errors import BadSetting

CacheMode = Literal["cold", "warm"]


class Class(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of one shape. Closed when it has `users`: each sends its next request when its last
    one ended. Open when it has a `rate`: requests are due at times fixed in advance, whatever the
    server does. `burstiness` 1 is Poisson, more is more even, less is more clustered. `ignore_eos`
    false is for a server that refuses that field: a `fixed` length is then hoped for, and an
    answer without it still refused."""

    name: str
    requests: int
    input_tokens: int
    output_tokens: int
    users: int = 0
    rate: float = 0.0
    burstiness: float = 1.0
    start_s: float = 0.0
    think_s: float = 0.0
    fixed: bool = True
    ignore_eos: bool = True
    needle: bool = False
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a valid result keeps. A share is of 1. `done` false is for a server whose dialect has no
    `[DONE]`: the body must then end whole by HTTP's own framing."""

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
    tuned_context: bool = False
    done: bool = True


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts that must be seen on the server, not believed from its flags. None: not asked."""

    speculation: bool | None = None
    max_model_len: int | None = None
    slots: int | None = None


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    classes: list[Class]
    description: str = ""
    seed: int = 1
    corpus: Literal["mixed", "code", "random"] = "mixed"
    cache: CacheMode = "cold"
    warm_up: int = 4
    body: dict[str, Any] = {}
    limits: Limits = Limits()
    expect: Expect = Expect()


def shipped() -> list[str]:
    folder = resources.files("relight.bench") / "scenarios"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir())


def load(name: str) -> Scenario:
    """A file's path, or the name of a shipped scenario. Raises BadSetting."""
    if name in shipped():
        text = (resources.files("relight.bench") / "scenarios" / f"{name}.toml").read_text("utf-8")
        return parse(text, name)
    try:
        return parse(Path(name).read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as problem:
        raise BadSetting(
            f"scenario {name} cannot be read ({problem}); give a TOML file or one of: "
            f"{', '.join(shipped())}",
            param="scenario",
        ) from problem


def parse(text: str, name: str) -> Scenario:
    try:
        scenario = msgspec.convert(tomllib.loads(text), Scenario)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as problem:
        raise BadSetting(f"scenario {name}: {problem}", param="scenario") from problem
    return check(scenario)


def check(scenario: Scenario) -> Scenario:
    """Raises BadSetting for what cannot be measured; returns its argument."""
    names = [one.name for one in scenario.classes]
    if not names or len(set(names)) < len(names):
        _refuse(scenario, f"classes are {names}; wanted one or more, each with its own name")
    if "limits" in names:
        _refuse(scenario, "a class is named limits; that name is taken")
    for one in scenario.classes:
        for problem in _problems(one):
            _refuse(scenario, f"class {one.name}: {problem}")
    for field in ("messages", "stream", "stream_options", "max_tokens", "model", "n"):
        if field in scenario.body:
            _refuse(scenario, f"body.{field} is set by the measuring itself; remove it")
    return scenario


def _problems(one: Class) -> list[str]:
    found = []
    if (one.users > 0) == (one.rate > 0):
        found.append(f"users is {one.users} and rate {one.rate}; wanted exactly one above 0")
    for field, low in (("requests", 1), ("input_tokens", 1), ("output_tokens", 2)):
        if getattr(one, field) < low:
            found.append(f"{field} is {getattr(one, field)}; wanted {low} or more")
    for field in ("burstiness", "start_s", "think_s"):
        value = getattr(one, field)
        if value < 0 or (field == "burstiness" and value == 0):
            found.append(f"{field} is {value}; wanted a positive number")
    if 0 < one.requests < one.users:
        found.append(f"requests is {one.requests} for {one.users} users; wanted one each or more")
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
