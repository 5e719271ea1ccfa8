"""Scenarios refuse what cannot be measured; prompts are new, of the wanted length, and mixed."""

import statistics

import pytest

from relight.base.errors import BadSetting
from relight.bench.corpus import WINDOW, Corpus
from relight.bench.prompts import Scale, Writer, prompts_hash, schedule
from relight.bench.scenario import Class, Scenario, changed, load, parse, shipped

ONE = Class(name="one", users=2, requests=4, input_tokens=500, output_tokens=8)


def scenario(**fields: object) -> Scenario:
    return Scenario(name="test", classes=[ONE], **fields)  # type: ignore[arg-type]


def test_every_shipped_scenario_is_sound_and_described() -> None:
    assert {"chat", "mixed", "open"} <= set(shipped())
    for name in shipped():
        assert load(name).description.endswith((".", "?")), name


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("users = 2\nrate = 1.0", "exactly one above 0"),
        ("", "exactly one above 0"),
        ("users = 2\noutput_tokens = 1", "output_tokens is 1; wanted 2"),
        ("users = 9", "requests is 4 for 9 users"),
        ("rate = 1.0\nburstiness = 0", "burstiness is 0"),
        ("users = 2\ncolour = 'red'", "unknown field `colour`"),
        ("users = 'two'", "Expected `int`, got `str`"),
    ],
)
def test_a_class_that_cannot_be_measured_is_refused_by_name(line: str, told: str) -> None:
    rest = "requests = 4\ninput_tokens = 10\n" + ("" if "output" in line else "output_tokens = 8\n")
    with pytest.raises(BadSetting) as refused:
        parse(f"name = 'x'\n[[classes]]\nname = 'one'\n{rest}{line}\n", "x.toml")
    assert told in refused.value.message


@pytest.mark.parametrize(
    "text", ["name = 'x'\nclasses = []", "name =", "name = 'x'\nclasses = []\n[limits]\nspeed = 1"]
)
def test_a_file_that_is_no_scenario_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match=r"scenario x\.toml|scenario x"):
        parse(text, "x.toml")


def test_an_unknown_name_tells_the_shipped_ones() -> None:
    with pytest.raises(BadSetting, match="chat, mixed, open"):
        load("no-such-scenario")


def test_the_body_cannot_take_over_what_is_measured() -> None:
    with pytest.raises(BadSetting, match=r"body\.stream"):
        changed(scenario(body={"stream": False}), "users=2")


def test_a_cell_changes_all_classes_or_the_named_one() -> None:
    cell = "output_tokens=16,long.input_tokens=4096,short.rate=2.5,limits.done=false"
    made = changed(load("mixed"), cell)
    assert not made.limits.done
    by_name = {one.name: one for one in made.classes}
    assert {one.output_tokens for one in made.classes} == {16}
    assert by_name["long"].input_tokens == 4096
    assert (by_name["short"].users, by_name["short"].rate) == (0, 2.5)


@pytest.mark.parametrize(
    "cell", ["colour=red", "tall.users=2", "limits.users=2", "users=x", "users"]
)
def test_a_cell_that_says_nothing_is_refused(cell: str) -> None:
    with pytest.raises(BadSetting, match="cell"):
        changed(load("mixed"), cell)


def test_prompts_share_no_beginning_and_no_window() -> None:
    writer = Writer(scenario(), nonce="n")
    prompts = [writer.prompt(ONE, Scale()) for _ in range(20)]
    assert len({prompt.text[:16] for prompt in prompts}) == 20
    windows = [w for p in prompts for w in p.text.split("\n\n") if len(w) == WINDOW]
    assert len(set(windows)) == len(windows)


def test_a_nonce_makes_the_same_prompts_again_and_another_none_of_them() -> None:
    def made(nonce: str) -> str:
        writer = Writer(scenario(), nonce)
        return prompts_hash([writer.prompt(ONE, Scale()) for _ in range(3)])

    assert made("a") == made("a") != made("b")


@pytest.mark.parametrize("tokens", [100, 2000])
def test_prompts_have_the_length_that_the_scale_tells(tokens: int) -> None:
    scale = Scale(overhead=11, slope=0.3)
    prompt = Writer(scenario(), "n").prompt(ONE, scale, input_tokens=tokens)
    assert scale.overhead + scale.slope * len(prompt.text) == pytest.approx(tokens, abs=1)


def test_a_needle_is_in_the_prompt_and_asked_for() -> None:
    needle = Class(name="n", users=1, requests=1, input_tokens=900, output_tokens=8, needle=True)
    prompt = Writer(scenario(), "n").prompt(needle, Scale())
    assert prompt.needle is not None
    assert prompt.text.count(prompt.needle) == 1
    assert prompt.text.endswith("What is it?")


def test_the_mix_holds_every_language() -> None:
    text = Corpus("mixed", seed=1).text(60_000)
    assert "记录在第" in text
    assert '"actor"' in text
    assert "and entry" in text
    assert "def " in text
    assert len(text) == 60_000
    assert Corpus("mixed", seed=1).text(1000) != Corpus("mixed", seed=2).text(1000)


def test_arrivals_are_fixed_beforehand_and_keep_their_rate_and_clusters() -> None:
    spread = {}
    for burstiness in (0.25, 1.0, 4.0):
        one = Class(
            name="o",
            rate=10.0,
            burstiness=burstiness,
            requests=4000,
            input_tokens=1,
            output_tokens=2,
            start_s=5.0,
        )
        due = schedule(one, seed=1)
        assert due == schedule(one, seed=1)
        gaps = [b - a for a, b in zip([5.0, *due], due, strict=False)]
        assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.1)
        spread[burstiness] = statistics.stdev(gaps) / statistics.fmean(gaps)
    # The coefficient of variation of gamma gaps is the root of 1 / shape: 2, 1, 1/2.
    assert list(spread.values()) == pytest.approx([2.0, 1.0, 0.5], rel=0.15)
