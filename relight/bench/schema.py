"""The parts of a result: what is stored of a run, field by field. Knows no file and no server.

Figures that could not be had are null, never 0.
"""

from typing import Any, Literal

import msgspec

from relight.bench.scenario import CacheMode
from relight.bench.stats import Summary

HitSource = Literal["metrics", "usage"]
Status = Literal["valid", "invalid", "incomplete"]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """`sources` is a hash of the measuring's own code, `commit` that of its checkout."""

    name: str = "relight bench"
    version: str
    sources: str | None = None
    commit: str | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that measured, which need not be the server's."""

    system: str
    python: str
    cores: int
    cpu: str = ""
    memory_bytes: int | None = None
    load_before: float
    load_after: float


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says of itself. `fingerprint` is of its model list and settings: unlike
    before and after means another server answered. Command line and hashes are of its process, if
    it runs on the measuring machine; secrets are taken out. `weights_hash` is of names, sizes and
    headers of the files; `overrides` are names of variables that look like left-over test switches.
    """

    url: str
    model: str
    dialect: str | None
    max_model_len: int | None
    fingerprint_before: str
    fingerprint_after: str
    version: str | None = None
    revision: str | None = None
    argv: list[str] = []
    settings: Any = None
    settings_hash: str | None = None
    uptime_s: float | None = None
    config_hash: str | None = None
    weights_hash: str | None = None
    tokenizer_hash: str | None = None
    template_hash: str | None = None
    overrides: list[str] = []


class ClassFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a class and what it became. Lengths in tokens as the server counted;
    `input_ratio` is the mean of actual over wanted, of prompts whose length was to be kept."""

    name: str
    sent: int
    ok: int
    input_target: int
    input_mean: float | None
    input_min: int | None
    input_max: int | None
    input_ratio: float | None = None
    output_target: int
    output_fixed: bool
    ttft: Summary | None
    tpot: Summary | None
    stall_max: float | None
    ttfa: Summary | None = None
    icl: Summary | None = None
    out_tok_s: float | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of all conversations. `hit_share` is of its prompt tokens, by usage."""

    turn: int
    n: int
    input_mean: float | None
    hit_share: float | None
    ttft: Summary | None


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    corpus: str
    corpus_hash: str
    nonce: str
    prompts_hash: str
    classes: list[ClassFacts]
    planned: int | None = None
    turns: list[Turn] = []
    trace_best_hits: float | None = None


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands among others: which block of which session, which arm, in what order;
    which of several cells, repeated how often."""

    session: str
    arm: str = ""
    block: int = 0
    order: str = ""
    cell: str = ""
    repeat: int = 0


class Protocol(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds since the run began."""

    warmup_requests: int
    warmup_disjoint: bool = True
    window_s: float
    steady_s: float
    prompts_calibrated: bool
    window_start: float | None = None
    window_end: float | None = None
    clients: int = 1
    place: Place | None = None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """`ok` is null where the server offers nothing to check by: unchecked, which is not passed."""

    id: str
    ok: bool | None
    value: float | str | None
    limit: str
    why: str


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    status: Status
    reasons: list[str]
    checks: list[Check]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    sent: int
    ok: int
    failures: dict[str, int]


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """`in_server` and `out_server` are of the server's counters, the others of usage."""

    in_usage: int
    out_usage: int
    out_expected: int | None
    cached: int | None
    reasoning: int | None
    in_server: float | None
    out_server: float | None


class ClientFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, as seen from outside. `itl` only where the server tells the tokens of a chunk."""

    ttft: Summary | None
    ttft_queue: Summary | None
    ttfa: Summary | None
    tpot: Summary | None
    icl: Summary | None
    itl: Summary | None
    e2e: Summary | None
    stall_max: float | None
    stalls: int
    tokens_per_chunk: float | None


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the window in seconds, from the server's own histograms, or (`source`) from what
    it told beside each answer. `gap` is between tokens at SGLang and between outputs (steps, under
    speculation) at vLLM. `advance_closure` is time per token x tokens a verification / gap: 1 where
    the gap is that of steps and all three belong together."""

    requests: float | None
    ttft: float | None
    queue: float | None
    prefill: float | None
    tpot: float | None
    gap: float | None
    e2e: float | None
    steps: float | None
    running_max: float | None
    waiting_max: float | None
    resets: list[str]
    step_interval: float | None = None
    tokens_per_step: float | None = None
    advance_closure: float | None = None
    source: Literal["metrics", "response"] = "metrics"
    running_after: float | None = None


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """`out_tok_s_steady` is between the moments when the last user began and the first one left.
    `per_user` is 1 / mean TPOT; `per_request` output over whole time, prompt included."""

    out_tok_s: float
    out_tok_s_steady: float | None
    in_tok_s: float
    req_s: float
    per_user: float | None
    per_request: float | None
    goodput_req_s: float | None
    slo_attainment: float | None
    little_closure: float | None
    implied_running: float | None
    slots: int | None
    slot_ceiling: float | None
    per_device: float | None = None


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Speculation on one corpus, from what came beside each answer: pooled over verifications, and
    the mean over requests, which weighs short answers more."""

    corpus: str
    requests: int
    al_pooled: float | None
    al_mean_req: float | None
    rate: float | None
    per_pos_uncond: list[float]


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """Pooled over the window. `synthetic`: on random words, which says nothing about real use.
    By position: `uncond` over all verifications (their sum is the advance less 1), `given_drafted`
    over those that drafted so far, `cond` over those that accepted all before. `source` gauge: of
    polls of a figure of the last moments, since the server counts nothing."""

    drafts: float | None
    drafted: float | None
    accepted: float | None
    al_pooled: float
    rate: float | None
    per_pos_uncond: list[float]
    cond: list[float]
    synthetic: bool
    per_pos_given_drafted: list[float] = []
    al_mean_req: float | None = None
    depth: float | None = None
    accepted_per_verified: float | None = None
    slices: list[Slice] = []
    source: Literal["metrics", "gauge", "response"] = "metrics"


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of cache memory; its capacity in the server's own unit, and the most of it that was
    in use. There is no one `KV usage` where there are several kinds."""

    name: str
    capacity: float | None
    peak_share: float


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    mode: CacheMode
    hit_fraction: float | None
    source: HitSource | None
    preemptions: float | None
    usage_peak: float | None
    groups: list[GroupFacts] = []


class Fairness(msgspec.Struct, frozen=True, kw_only=True):
    """Jain's index over the tokens a second of each request: 1 is equal."""

    jain: float | None


class NeedleCell(msgspec.Struct, frozen=True, kw_only=True):
    """Needles of one kind at one depth of one class; `score` is the mean share found."""

    kind: str
    class_name: str
    length: float
    depth: float
    asked: int
    score: float


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """`corrupted` are answers with figures that are no numbers, where the server counts them."""

    output_hash: str
    looping: int
    needles: int
    needles_found: int
    needle_score: float | None = None
    cells: list[NeedleCell] = []
    corrupted: float | None = None


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Of the server's machine within the window, where that is the measuring one: bytes, joules.
    Power is of the processor's packages and of the accelerators (mean draw x time)."""

    resident_max: int | None = None
    swap_max: int | None = None
    mem_available_min: int | None = None
    zombies_max: int | None = None
    device_free_min: float | None = None
    temperature_max: float | None = None
    cpu_j: float | None = None
    device_j: float | None = None
    j_per_token: float | None = None


class Self(msgspec.Struct, frozen=True, kw_only=True):
    """The measuring itself: how late its own loops ran, and the largest share of one core that a
    client process had; `cpu_shares` are those of all."""

    loop_lag: Summary | None
    send_lag: Summary | None
    cpu_share: float
    cpu_shares: list[float] = []
