"""Muon for the matrices of the layers, Adam for all else. Knows no loss.

Muon (Jordan et al. 2024) moves a matrix by the orthogonal factor of its momentum, found by five
Newton-Schulz steps: every direction learns at the same rate, which a short run needs.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from training.model import Parameters, trained

MUON_RATE = 0.02
MOMENTUM = 0.95
DECAY = 0.01

ADAM_RATES = (
    ("embed.weight", 2e-2),
    ("head.weight", 5e-3),
    ("markov_w1.weight", 2e-2),
    ("markov_w2.weight", 5e-3),
    ("confidence_head.proj.weight", 2e-3),
    ("q_weight", 4e-3),
    ("k_weight", 4e-3),
    ("norm.weight", 4e-3),
    ("_fn", 5e-4),
    ("_base", 1e-2),
    ("_scale", 2e-3),
    (".gate.weight", 2e-3),
    ("weights_proj.weight", 2e-3),
    ("ape", 1e-2),
    ("attn_sink", 1e-2),
)


class Optimiser:
    def __init__(self, parameters: Parameters) -> None:
        self.matrices = [p for name, p in parameters.items() if _is_matrix(name)]
        self.momenta = [torch.zeros_like(p) for p in self.matrices]
        device = next(iter(parameters.values())).device
        cuda = device.type == "cuda"
        groups: list[dict[str, Any]] = [
            {"params": [p], "lr": torch.tensor(rate, device=device), "peak": rate}
            for p, rate in _adam_parameters(parameters)
        ]
        self.rest = [p for group in groups for p in group["params"]]
        self.adam = torch.optim.Adam(
            groups, betas=(0.9, 0.95), eps=1e-10, fused=cuda, capturable=cuda, foreach=False
        )

    def step(self, factor: Tensor) -> None:
        """One step at `factor` of the peak rates; gradients are used up. Nothing here depends on a
        number that the host has to read, so that a step can be captured."""
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for group in self.adam.param_groups:
            group["lr"].copy_(factor * group["peak"])
        self.adam.step()
        for p, momentum in zip(self.matrices, self.momenta, strict=True):
            if p.grad is None:  # n-grams, while they are not looked up
                continue
            momentum.lerp_(p.grad, 1 - MOMENTUM)
            self._move(p, p.grad.lerp(momentum, MOMENTUM), MUON_RATE * factor)
        for p in (*self.matrices, *self.rest):
            p.grad = None

    @staticmethod
    @torch.no_grad()
    def _move(p: Tensor, update: Tensor, rate: Tensor) -> None:
        rows, columns = p.shape[-2:]
        p.mul_(1 - rate * DECAY)
        p.sub_(orthogonal(update) * (rate * max(1.0, rows / columns) ** 0.5))

    def state(self) -> dict[str, object]:
        return {"momenta": self.momenta, "adam": self.adam.state_dict()}

    def load(self, state: dict[str, object]) -> None:
        for momentum, saved in zip(self.momenta, state["momenta"], strict=True):  # type: ignore[call-overload]
            momentum.copy_(saved)
        self.adam.load_state_dict(state["adam"])  # type: ignore[arg-type]


def _is_matrix(name: str) -> bool:
    return trained(name) and not any(name.endswith(ending) for ending, _ in ADAM_RATES)


def _adam_parameters(parameters: Parameters) -> Iterator[tuple[Tensor, float]]:
    for name, p in parameters.items():
        if trained(name) and not _is_matrix(name):
            yield p, next(rate for ending, rate in ADAM_RATES if name.endswith(ending))


def orthogonal(update: Tensor) -> Tensor:
    """The nearest half-orthogonal matrices of [.., r, c], roughly: singular values near 1."""
    x = update.to(torch.bfloat16 if update.device.type == "cuda" else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).to(update.dtype)
