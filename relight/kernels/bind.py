"""Gives kernels to the weights that they can multiply. Knows no network: weights are found in
whatever dataclasses, tuples and lists hold them."""

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from relight.base.numerics import Family
from relight.kernels.codec import DenseWeight, FastLinear, Fp8Weight
from relight.kernels.experts import Experts, FastExperts
from relight.kernels.experts import given as experts_given
from relight.kernels.experts import groups as experts_groups
from relight.kernels.experts import step as experts_step
from relight.kernels.linear import given as linear_given
from relight.kernels.linear import step as linear_step
from relight.kernels.row_ops import NO_KERNELS, Ops


@dataclass(slots=True)
class Bound:
    """What was found: `made` counts weights by op, for made rows, and `given` for given rows;
    `left` counts those that stay the reference's by reason."""

    made: dict[str, int] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)

    def count(self, op: str, objection: str, family: Family = "step") -> None:
        table, key = (self.made if family == "step" else self.given), op
        if objection:
            of = "" if family == "step" else " for prompts"
            table, key = self.left, f"{op}{of}: {objection}"
        table[key] = table.get(key, 0) + 1


class Binder:
    def __init__(
        self,
        linear: FastLinear | None,
        experts: FastExperts | None,
        ops: Ops = NO_KERNELS,
        *,
        given_linear: FastLinear | None = None,
        given_experts: FastExperts | None = None,
    ) -> None:
        self._linear = linear
        self._experts = experts
        self._given_linear = given_linear
        self._given_experts = given_experts
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
        if self._linear is not None:
            objection = linear_step.objection(w)
            self.bound.count("linear", objection)
            w = w if objection else replace(w, made=self._linear)
        if self._given_linear is not None:
            objection = linear_given.objection(w)
            self.bound.count("linear", objection, "prefill")
            w = w if objection else replace(w, given=self._given_linear)
        return w

    def _stacks(self, stacks: Experts) -> Experts:
        parts = (stacks.w1, stacks.w3, stacks.w2)
        if self._experts is not None:
            objection = experts_step.objection(*parts)
            self.bound.count("experts", objection)
            stacks = stacks if objection else replace(stacks, made=self._experts)
        if self._given_experts is not None:
            objection = experts_given.objection(*parts)
            self.bound.count("experts", objection, "prefill")
            if not objection:
                stacks = replace(stacks, given=experts_groups.fitted(self._given_experts, *parts))
        return stacks
