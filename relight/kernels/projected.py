"""Hyper-connections of given rows with the product that projects their streams. Knows no
sublayer."""

from relight.kernels.hyper.given import GivenHyper
from relight.kernels.linear.given import GivenLinear
from relight.kernels.toolbox import Toolbox


def given_hyper(tools: Toolbox) -> GivenHyper:
    return GivenHyper(tools, GivenLinear(tools))
