"""Prints how much of its cached prefix each client's conversation reuses, turn by turn.

    python -m tools.replay [v4 | v4.1]

The server, the scheduler and the prefix index are real; the answers are written, in tokens as a
model may split them. `before` is the same without a memory of what was made.
"""

import sys

import msgspec

from relight.text.dialect import Encoding
from tools.replay.clients import CLIENTS
from tools.replay.play import Turn, play


def main() -> None:
    encoding = msgspec.convert(sys.argv[1] if sys.argv[1:] else "v4", Encoding)
    print("| client | before | reuse by turn | reused of reusable | what left the prefix |")
    print("| --- | --- | --- | --- | --- |")
    for client in CLIENTS:
        before = play(client(), encoding, remembers=False)
        turns = play(client(), encoding)
        print(
            f"| {client.name} | {_share(before)} | {_by_turn(turns)} | {_sums(turns)} | "
            f"{_breaks(turns)} |"
        )


def _share(turns: list[Turn]) -> str:
    return f"{sum(t.cached for t in turns) / sum(t.reusable for t in turns):.0%}"


def _by_turn(turns: list[Turn]) -> str:
    return " ".join(f"{turn.reuse:.0%}" for turn in turns[1:])


def _sums(turns: list[Turn]) -> str:
    cached, reusable = sum(t.cached for t in turns), sum(t.reusable for t in turns)
    return f"{cached:,} of {reusable:,} ({cached / reusable:.0%})"


def _breaks(turns: list[Turn]) -> str:
    places: dict[str, list[str]] = {}
    for turn in turns:
        where, _, why = turn.broken.partition(": ")
        if why:
            places.setdefault(why, []).append(where)
    return "; ".join(f"{', '.join(where)}: {why}" for why, where in places.items()) or "nothing"


if __name__ == "__main__":
    main()
