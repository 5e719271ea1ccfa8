"""Whether two results may be put side by side. Knows only results."""

import msgspec

from relight.bench.result import Result


def unlike(a: Result, b: Result) -> list[str]:
    """What differs of what was asked, or makes a result unfit: empty when a comparison is fair. The
    server and its flags may differ; they are what is compared."""
    found = [
        f"{name} is {old!r} in one and {new!r} in the other"
        for name, old, new in (
            ("cache", a.scenario.cache, b.scenario.cache),
            ("corpus", a.scenario.corpus, b.scenario.corpus),
            ("corpus text", a.workload.corpus_hash, b.workload.corpus_hash),
            ("body", a.scenario.body, b.scenario.body),
            ("classes", *(msgspec.to_builtins(r.scenario.classes) for r in (a, b))),
            ("client machine", a.host.system, b.host.system),
        )
        if old != new
    ]
    for result in (a, b):
        if result.validity is None or result.validity.status != "valid":
            found.append(f"{result.run_id} is not valid")
    return found + changed_text(a, b)


def changed_text(a: Result, b: Result) -> list[str]:
    """Literally equal prompts at temperature 0 must give equal answers: a kernel that is faster and
    wrong is neither."""
    same = a.workload.prompts_hash == b.workload.prompts_hash
    greedy = all(r.scenario.body.get("temperature") == 0 for r in (a, b))
    if same and greedy and a.quality.output_hash != b.quality.output_hash:
        return ["equal prompts at temperature 0 were answered with other texts"]
    return []
