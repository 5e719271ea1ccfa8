"""Which variant of each op runs, chosen once at load. Knows no op's arguments.

Every op has its torch definition, the reference, in both families. A variant is a faster form of
one op in one family; it declares what it needs, and is chosen where all of that is there. A variant
that no device has proven yet, or only one of another architecture, is chosen only where it is asked
for by name (`--kernels cuda`).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from relight.base.numerics import Family

OPS = (
    "attend",
    "compress",
    "engram",
    "experts",
    "hyper",
    "index",
    "linear",
    "norm",
    "quant",
    "rope",
    "route",
    "sample",
    "store",
)

REFERENCE, AUTO = "reference", "auto"


@dataclass(frozen=True, slots=True)
class Variant:
    """`needs` are capabilities of device, packages and model, in the words that people read."""

    op: str
    family: Family
    name: str
    needs: tuple[str, ...]
    proven: tuple[str, ...] = ()  # architectures that a run on is committed, under docs/gpu

    def __str__(self) -> str:
        return f"{self.op} ({self.family}) by {self.name}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a variant does not run."""

    variant: Variant
    reason: str

    def __str__(self) -> str:
        return f"{self.variant}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Selection:
    """What runs, and what does not and why. An op in neither list is the reference's."""

    chosen: tuple[Variant, ...] = ()
    refused: tuple[Refusal, ...] = ()

    def variant(self, op: str, family: Family) -> str:
        names = [one.name for one in self.chosen if (one.op, one.family) == (op, family)]
        return names[0] if names else REFERENCE

    def without(self, refused: Iterable[Refusal]) -> "Selection":
        """Some turned out to be bad: their ops go back to the reference."""
        bad = tuple(refused)
        gone = {refusal.variant for refusal in bad}
        chosen = tuple(one for one in self.chosen if one not in gone)
        return Selection(chosen, (*self.refused, *bad))

    def __str__(self) -> str:
        """Part of the operator identity of cached pages: `op:prefill`, or `op:prefill/step` where
        the families differ."""
        return " ".join(f"{op}:{self._families(op)}" for op in OPS)

    def _families(self, op: str) -> str:
        prefill, step = self.variant(op, "prefill"), self.variant(op, "step")
        return prefill if prefill == step else f"{prefill}/{step}"


def choose(wish: str, variants: Iterable[Variant], supported: Collection[str]) -> Selection:
    """`wish` is `reference`, which forces the torch definitions; `auto`, which takes what is
    proven; or the name of the variants to take. Of several that fit the first one is chosen.
    `supported` are capabilities, and the architecture of the device."""
    chosen: dict[tuple[str, Family], Variant] = {}
    refused: list[Refusal] = []
    for variant in variants:
        reason = _objection(wish, variant, supported)
        if reason:
            refused.append(Refusal(variant, reason))
        else:
            chosen.setdefault((variant.op, variant.family), variant)
    return Selection(tuple(chosen.values()), tuple(refused))


def _objection(wish: str, variant: Variant, supported: Collection[str]) -> str:
    missing = [need for need in variant.needs if need not in supported]
    if wish == REFERENCE:
        return "not asked for (--kernels reference)"
    if wish not in (AUTO, variant.name):
        return f"not asked for (--kernels {wish})"
    if wish == AUTO and not variant.proven:
        return f"not yet proven on a device (--kernels {variant.name} takes it all the same)"
    if missing:
        found = ", ".join(need for need in variant.needs if need in supported) or "none of it"
        return (
            f"required: {', '.join(variant.needs)}; supported: {found}; "
            f"missing: {', '.join(missing)}"
        )
    if wish == AUTO and not any(arch in supported for arch in variant.proven):
        return (
            f"proven on {', '.join(variant.proven)} only "
            f"(--kernels {variant.name} takes it all the same)"
        )
    return ""
