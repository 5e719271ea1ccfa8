import math
import xml.etree.ElementTree as ElementTree

from tools.gantt import TARGET_S, draw, simulate


def test_the_picture_of_scheduling_shows_what_is_said_of_it() -> None:
    held, full = simulate(TARGET_S), simulate(math.inf)
    assert max(gap for _, gap in held.gaps) <= 2 * TARGET_S < max(gap for _, gap in full.gaps)
    picture = draw([("held", held), ("full", full)])
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert len(picture) < 200_000
