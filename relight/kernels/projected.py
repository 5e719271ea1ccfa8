"""Hyper-connections of given rows with the product that projects their streams. Knows no
sublayer."""

from relight.kernels.hyper.given import GivenHyper
from relight.kernels.linear.given import GivenLinear
from relight.kernels.toolbox import Toolbox

ENOUGH_BLOCKS = 16
"""Wide tiles from so many on: 72 outputs are one of them, or two of the narrow ones, which bring
streams twice."""


def given_hyper(tools: Toolbox) -> GivenHyper:
    return GivenHyper(tools, GivenLinear(tools, ENOUGH_BLOCKS))
