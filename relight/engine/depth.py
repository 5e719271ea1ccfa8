"""Finds out how many tokens it pays to guess ahead for sequences of each kind, and from which
threshold on. Knows no sequence, no model and no clock: it is told what each step brought and how
long it took.

A step is paid for by all of its sequences, so choices are made for all kinds in it together: those
that bring most tokens in a second,

    (rows + right guesses) / (seconds without guesses + seconds more for the guesses),

by what was learnt of both (`acceptance`, `steptimes`). The first steps with about so many sequences
probe. Behind them the loss is bounded: a step with guesses loses its time, in steps without, less
the tokens that it brought a sequence. No run of steps within the last 64 may lose more than
`MOST_LOSS`, and a step has only guesses with which that holds even if all of them are wrong.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from relight.engine.acceptance import NO_GUESS, OFF, Acceptance, Choice, Kind, Option, Trial
from relight.engine.steptimes import StepTimes, group_of

WINDOW = 64
MOST_LOSS = 1.5
"""In steps without guesses. 3 % of the window are 1.92; times are not known to the last percent."""
PROBES = (8, 12, 11, 1)
"""Steps without guesses, with as many as can be, with half of them, and one without."""
GAIN_TO_BEGIN = 1.03
GAIN_TO_GO_ON = 1.01
"""How much better than none guesses must seem, before they are begun and while they are made."""
REFIT = 16
"""Steps until choices are made anew, if the sequences stay the same."""
REST = 256
"""Steps between looks at the other way. Without guesses it is doubled each time that they lose."""
LONGEST_REST = 4096
SOON = WINDOW // 2
"""Steps until the first look at none, since guesses may have been begun on few measured times."""
LOOK = 4
"""Steps of a look, at most. The first one with guesses checks none."""
LEARNT = 2
"""Checks of a kind that are learnt of in a step: more would take time and tell little."""
SLOWEST = 2.0
"""A step that took more than so many times what was expected was held up by something else."""
UNSURE = 0.015
"""By how much the time without guesses may be smaller than it seems."""
SWEEPS = 2

Script = deque[int]
"""Depths of steps to come, of all kinds, at the lowest threshold."""


class Policy(NamedTuple):
    """What sequences of each kind ask for, and the script that says so, if one does."""

    choices: Mapping[Kind, Choice]
    script: Script | None = None


class Step(NamedTuple):
    """`rows`: sequences with made rows; `checked`: their guesses; `asks`: for others."""

    rows: int
    checked: int
    asks: bool
    script: Script | None = None


class Fit(NamedTuple):
    """`cost`: seconds that the choices add to a step, relative to one without guesses."""

    choices: Mapping[Kind, Choice]
    asks: bool = False
    cost: float = 0.0


class Depths:
    """`thresholds` rise. `chosen`: what seems best for each kind in each group of steps; another
    dictionary where it has changed."""

    def __init__(self, most: int, thresholds: Sequence[float]) -> None:
        self.most = most
        self.chosen: Mapping[tuple[Kind, int], Choice] = {}
        self._lowest = thresholds[0]
        self._all = Acceptance(most, thresholds)
        self._acceptance: defaultdict[Kind, Acceptance] = defaultdict(
            lambda: Acceptance(most, thresholds)
        )
        self._learnt: Counter[Kind] = Counter()
        self._times = StepTimes()
        self._probes: dict[int, Script] = {}
        self._look: Script = deque()
        self._look_loss = 0.0
        self._losses: deque[float] = deque(maxlen=WINDOW - 1)
        self._resting = 0  # steps without guesses that are left, after too much was lost
        self._until_look = self._rest = REST
        self._fit = Fit({})
        self._fitted: object = None  # what `_fit` is for
        self._age = 0

    # -- before a step

    def choose(self, counts: Mapping[Kind, int], rows: int, *, reading: bool = False) -> Policy:
        """For a step with so many made rows. `counts` are of those that may have guesses;
        `reading`: with rows of prompts, so its time will tell nothing."""
        self._learnt.clear()
        if not rows:
            return Policy({})
        group = group_of(rows)
        if group not in self._probes:
            self._probes[group] = _probes(self.most)
        if self._probes[group]:
            return self._scripted(counts, self._probes[group], reading=reading)
        if self._resting or not self._times.knows(rows):
            return _nothing(counts)
        fit = self._best(counts, rows)
        asking = sum(counts.values())
        if self._until_look <= 0 and not (self._resting or self._look or reading) and counts:
            self._begin_look(fit, rows, asking)
        if self._look and not reading:
            if not self._look[0] or self._cost(rows, asking * self._look[0]) <= self._room:
                return self._scripted(counts, self._look, reading=False)
            self._look.clear()
            self._end_look()
        return Policy(fit.choices)

    def _scripted(self, counts: Mapping[Kind, int], script: Script, *, reading: bool) -> Policy:
        if reading:
            return _nothing(counts)
        choice = Choice(script[0], self._lowest) if script[0] else OFF
        return Policy(dict.fromkeys(counts, choice), script)

    def _best(self, counts: Mapping[Kind, int], rows: int) -> Fit:
        """The choices that bring most, of those that may be lost now."""
        what = (rows, *sorted(counts.items()))
        if what != self._fitted or self._age >= REFIT:
            was_off = not self._fit.asks
            self._fit = self._find(counts, rows, MOST_LOSS)
            self._fitted, self._age = what, 0
            if self._fit.asks:
                self._rest = REST
                self._until_look = SOON if was_off else self._until_look
            self._tell(self._fit.choices, rows)
        if not self._fit.asks:
            return self._fit
        room = self._room
        if self._fit.cost <= room:
            return self._fit
        found = self._find(counts, rows, room)
        if not found.asks:
            self._stop(counts, rows)
        return found

    def _stop(self, counts: Mapping[Kind, int], rows: int) -> None:
        """By bad luck, or since guesses are no longer right: what comes next will tell."""
        self._resting, self._age = WINDOW, REFIT
        self._all.forget()
        for kind in counts:
            self._acceptance[kind].forget()
        self._tell(dict.fromkeys(counts, OFF), rows)

    def _tell(self, choices: Mapping[Kind, Choice], rows: int) -> None:
        group = group_of(rows)
        chosen = {**self.chosen, **{(kind, group): choice for kind, choice in choices.items()}}
        if chosen != self.chosen:
            self.chosen = chosen

    @property
    def _room(self) -> float:
        """How much the next step may lose, after the worst run of steps up to the last one."""
        most = lost = 0.0
        for loss in reversed(self._losses):
            lost += loss
            most = max(most, lost)
        return MOST_LOSS - most

    def _cost(self, rows: int, guesses: float) -> float:
        """Seconds more than without guesses, in those."""
        return self._times.extra(rows, guesses) / self._times.plain(rows)

    # -- which choices

    def _find(self, counts: Mapping[Kind, int], rows: int, most_cost: float) -> Fit:
        """Each kind's choice as if all were of it, then beside those of the others."""
        options = {kind: self._options(kind) for kind in counts}
        num_asking = sum(counts.values())

        def cost(drafted: float) -> float:
            return self._cost(rows, drafted) if drafted else 0.0

        def rate(drafted: float, right: float) -> float:
            """Tokens in the time of a step without guesses."""
            more = cost(drafted)
            return (rows + right) / (1 + more) if more <= most_cost else 0.0

        def alone(option: Option) -> float:
            return rate(num_asking * option.drafted, num_asking * option.right)

        def total(chosen: Mapping[Kind, Option]) -> tuple[float, float]:
            drafted = sum(counts[kind] * option.drafted for kind, option in chosen.items())
            return drafted, sum(counts[kind] * option.right for kind, option in chosen.items())

        def beside(kind: Kind) -> Option:
            return max(options[kind], key=lambda option: rate(*total(chosen | {kind: option})))

        chosen = {kind: max(options[kind], key=alone) for kind in counts}
        for _ in range(SWEEPS if len(counts) > 1 else 0):
            for kind in counts:
                chosen[kind] = beside(kind)
        drafted, right = total(chosen)
        wanted = GAIN_TO_GO_ON if self._fit.asks else GAIN_TO_BEGIN
        if not drafted or rate(drafted, right) < wanted * rows:
            return Fit(dict.fromkeys(counts, OFF))
        choices = {kind: option.choice for kind, option in chosen.items()}
        return Fit(choices, True, cost(drafted))

    def _options(self, kind: Kind) -> list[Option]:
        """A kind that is not known yet is thought to be as all are together."""
        known = self._acceptance[kind].options() or self._all.options()
        return [NO_GUESS, *known]

    # -- looks

    def _begin_look(self, fit: Fit, rows: int, num_asking: int) -> None:
        """At none, so that their time stays known; and for kinds that have few, at more."""
        self._until_look, self._look_loss = self._rest, 0.0
        if fit.asks:
            self._times.forget(rows)
            self._look.extend([0] * LOOK)
        else:
            self._rest = min(2 * self._rest, LONGEST_REST)
        longest = Choice(self.most, self._lowest)
        if any(choice != longest for choice in fit.choices.values()):
            # At the most with which two steps may be lost; it ends before a third that may not.
            room, depths = self._room / 2, range(1, self.most + 1)
            fitting = [d for d in depths if self._cost(rows, num_asking * d) <= room]
            self._look.extend(fitting[-1:] * LOOK)
        for kind, choice in fit.choices.items():
            if choice is OFF:
                self._acceptance[kind].forget()

    def _end_look(self) -> None:
        self._age = REFIT
        if not self._fit.asks and self._look_loss < 0:  # they pay: once more
            self._until_look, self._rest = 0, REST

    # -- after a step

    def learn(self, trial: Trial, checked: int, right: int) -> None:
        """The first `checked` guesses of a trial were checked."""
        kind, choice, confidence = trial
        if self._learnt[kind] < LEARNT:
            self._learnt[kind] += 1
            for acceptance in (self._acceptance[kind], self._all):
                acceptance.add(choice, confidence[:checked], right)

    def observe(self, step: Step, right: int, seconds: float) -> None:
        """A step has brought so many right guesses. 0 seconds: its time tells nothing."""
        if seconds <= 0 or not step.rows:
            return
        loss = self._loss(step, right, seconds)
        is_look = step.script is self._look
        if step.script is not None and not is_look:
            loss = 0.0  # that is what probing takes
        self._losses.append(loss)
        self._resting = max(0, self._resting - 1)
        self._until_look -= 1
        self._age += 1
        # A sequence near its end asks for none, and a grammar or penalties forbid them: a step in
        # which nobody asks has tried no depth.
        if step.script and (step.asks or not step.script[0]):
            step.script.popleft()
        if is_look:
            self._look_loss += loss
            if not self._look:
                self._end_look()

    def _loss(self, step: Step, right: int, seconds: float) -> float:
        times, rows = self._times, step.rows
        if not step.asks and not step.checked:
            times.add_plain(rows, seconds)
            return 0.0
        plain = times.plain(rows)
        if not plain:
            return 0.0
        if step.asks:
            times.add_extra(rows, step.checked, seconds - plain)
        seconds = min(seconds, SLOWEST * (plain + times.extra(rows, step.checked)))
        return (1 + UNSURE) * seconds / plain - 1 - right / rows


def _nothing(counts: Mapping[Kind, int]) -> Policy:
    return Policy(dict.fromkeys(counts, OFF))


def _probes(most: int) -> Script:
    depths = (0, most, max(1, most // 2), 0)
    return deque(depth for depth, count in zip(depths, PROBES, strict=True) for _ in range(count))
