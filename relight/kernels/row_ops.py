"""The kernels of the ops whose weights are plain tensors, by the family of the rows that they are
for. Knows no op's arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from relight.base.numerics import Family
from relight.kernels.attend import FastAttend
from relight.kernels.attend.given import GivenAttend
from relight.kernels.attend.step import StepAttend
from relight.kernels.compress.rows import RowCompress
from relight.kernels.engram.rows import RowEngram
from relight.kernels.experts.shared import RowShared
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.index.rows import RowIndex
from relight.kernels.projected import given_hyper
from relight.kernels.route.rows import RowRoute
from relight.kernels.sample.step import StepSample
from relight.kernels.select import Selection
from relight.kernels.store.rows import RowStore
from relight.kernels.streams import Branches, SideStream
from relight.kernels.toolbox import Toolbox
from relight.kernels.vectors import RowVectors

Branch = Literal["keys", "index keys", "index weights", "queries", "balance", "shared"]
"""What may run on a stream of its own: "keys", all that attention stores, beside its queries; of it
"index keys", which compressors of their own make; "index weights", those of the indexer's heads;
"queries", those of heads, beside the selection by those of the indexer; "balance", what only the
spread reads of a mix, beside attention; "shared", the shared expert beside the routed ones."""


@dataclass(frozen=True, slots=True)
class RowOps:
    """Of one family. None: the op's definition runs. `vectors` is norm, rope, quant and what is
    stored, `store` moves what is stored. `streams`: where branches run, each begun in the order of
    the model; those without one run where all else does."""

    hyper: RowHyper | None = None
    vectors: RowVectors | None = None
    store: RowStore | None = None
    compress: RowCompress | None = None
    route: RowRoute | None = None
    shared: RowShared | None = None
    attend: FastAttend | None = None
    index: RowIndex | None = None
    engram: RowEngram | None = None
    streams: Mapping[Branch, SideStream] = field(default_factory=dict)

    def branches(self) -> Branches:
        return Branches(self.streams)


DEFINITIONS = RowOps()


@dataclass(frozen=True, slots=True)
class Ops:
    """Nearly all kernels serve both families, each op where it was chosen for them. Rows of both
    are drawn from together."""

    prefill: RowOps = DEFINITIONS
    step: RowOps = DEFINITIONS
    sample: StepSample | None = None

    def of(self, family: Family) -> RowOps:
        return self.step if family == "step" else self.prefill


NO_KERNELS = Ops()


def chosen_ops(tools: Toolbox, selection: Selection) -> Ops:
    """Few rows leave most of a device idle between two launches, so what hangs on nothing else runs
    beside; many rows fill it, and would only hold more memory at once."""
    prefill, step = (_chosen(selection, family) for family in ("prefill", "step"))
    return Ops(
        prefill=replace(
            _row_ops(tools, prefill),
            attend=GivenAttend(tools) if "attend" in prefill else None,
            hyper=given_hyper(tools) if "hyper" in prefill else None,
        ),
        step=replace(_row_ops(tools, step), streams=_streams(tools.side)),
        sample=StepSample(tools) if "sample" in step else None,
    )


def _streams(side: SideStream | None) -> Mapping[Branch, SideStream]:
    if side is None:
        return {}
    third = side.another()
    return {
        "keys": side,
        "shared": side,
        "index weights": side,
        "balance": side,
        "index keys": third,
        "queries": third,
    }


def _chosen(selection: Selection, family: Family) -> frozenset[str]:
    return frozenset(one.op for one in selection.chosen if one.family == family)


def _row_ops(tools: Toolbox, chosen: frozenset[str]) -> RowOps:
    return RowOps(
        hyper=RowHyper(tools) if "hyper" in chosen else None,
        vectors=RowVectors(tools, chosen),
        store=RowStore(tools) if "store" in chosen else None,
        compress=RowCompress(tools) if "compress" in chosen else None,
        route=RowRoute(tools) if "route" in chosen else None,
        shared=RowShared(tools) if "experts" in chosen else None,
        attend=StepAttend(tools) if "attend" in chosen else None,
        index=RowIndex(tools) if "index" in chosen else None,
        engram=RowEngram(tools) if "engram" in chosen else None,
    )
