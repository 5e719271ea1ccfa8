"""Gives kernels to the weights that they can multiply. Knows no network: weights are found in
whatever dataclasses, tuples and lists hold them."""

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from relight.kernels.codec import DenseWeight, FastLinear, Fp8Weight
from relight.kernels.experts import Experts, FastExperts
from relight.kernels.experts import step as experts_step
from relight.kernels.linear import step as linear_step
from relight.kernels.row_ops import NO_KERNELS, Ops


@dataclass(slots=True)
class Bound:
    """What was found: `taken` counts weights by op, `left` those that stay the reference's by
    reason."""

    taken: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)

    def count(self, op: str, objection: str) -> None:
        table, key = (self.left, f"{op}: {objection}") if objection else (self.taken, op)
        table[key] = table.get(key, 0) + 1


class Binder:
    def __init__(
        self,
        linear: FastLinear | None,
        experts: FastExperts | None,
        ops: Ops = NO_KERNELS,
    ) -> None:
        self._linear = linear
        self._experts = experts
        self._ops = ops
        self.bound = Bound()

    def bind(self, tree: Any) -> Any:
        """The same tree, whose weights know their kernels. Tensors are shared, not copied."""
        if isinstance(tree, DenseWeight | Fp8Weight):
            return self._weight(tree)
        if isinstance(tree, Experts):
            return self._stacks(tree)
        if isinstance(tree, Ops):
            return self._ops
        if isinstance(tree, tuple | list) and not hasattr(tree, "_fields"):
            return type(tree)(self.bind(part) for part in tree)
        if is_dataclass(tree) and not isinstance(tree, type):
            parts = {one.name: getattr(tree, one.name) for one in fields(tree) if one.init}
            new = {name: self.bind(part) for name, part in parts.items()}
            changed = {name: part for name, part in new.items() if part is not parts[name]}
            return replace(tree, **changed) if changed else tree
        return tree

    def _weight(self, w: DenseWeight | Fp8Weight) -> DenseWeight | Fp8Weight:
        if self._linear is None:
            return w
        objection = linear_step.objection(w)
        self.bound.count("linear", objection)
        return w if objection else replace(w, fast=self._linear)

    def _stacks(self, stacks: Experts) -> Experts:
        if self._experts is None:
            return stacks
        objection = experts_step.objection(stacks.w1, stacks.w3, stacks.w2)
        self.bound.count("experts", objection)
        return stacks if objection else replace(stacks, fast=self._experts)
