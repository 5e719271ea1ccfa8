"""A model in this process: a tiny checkpoint, from plain code."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relight.base.errors import BadCheckpoint, BadRequest, BadSetting
from relight.llm import LLM
from relight.text.conversation import Message, Tool
from relight.text.parse import Content
from tests.serve.fakes import FOLDER, TOKENIZER


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny weights beside the tiny tokenizer: both have 320 tokens."""
    folder = tmp_path_factory.mktemp("llm") / "checkpoint"
    shutil.copytree(FOLDER.parent / "v4" / "checkpoint", folder)
    shutil.copy(FOLDER / "tokenizer.json", folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, device="cpu", num_slots=4)


def test_prompts_are_answered_in_their_order_whatever_runs_beside_them(llm: LLM) -> None:
    text, ids = "hello", TOKENIZER.encode_raw("hello")
    greedy = {"max_tokens": 4, "temperature": 0}
    alone = llm.generate("other", **greedy)
    together = llm.generate([text, ids, "other"], **greedy)
    assert [answer.content for answer in together] == [
        together[0].content,
        together[0].content,
        alone[0].content,
    ]
    assert all(answer.finish and answer.finish.usage.completion_tokens <= 4 for answer in together)
    assert llm.generate(ids, **greedy)[0].content == together[0].content


def test_a_bad_tokenizer_is_told_before_weights_are_read(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "tokenizer.json").unlink()
    read = []
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json"):
        LLM(tmp_path, device="cpu", progress=lambda done, total: read.append(done))
    assert not read


def test_a_seed_makes_the_text_again(llm: LLM) -> None:
    one, two = (llm.generate("x", max_tokens=8, seed=3)[0].content for _ in range(2))
    assert one == two


def test_several_choices_begin_with_the_only_one(llm: LLM) -> None:
    chosen = {"max_tokens": 8, "seed": 5, "logprobs": 2, "presence_penalty": 1.5}
    alone = llm.generate("hello", **chosen)
    three = llm.generate(["hello", "x"], n=3, **chosen)
    assert len(three) == 6
    assert three[0] == alone[0]
    assert len({answer.content for answer in three[:3]}) > 1
    assert three[3] == llm.generate("x", **chosen)[0]
    for refused in (llm.chat, llm.stream_chat):
        with pytest.raises(BadRequest, match="n is 2"):
            refused([Message("user", "Hi")], n=2)


def test_log_probabilities_are_of_tokens_that_make_the_text(llm: LLM) -> None:
    chosen = {"max_tokens": 12, "temperature": 0, "logprobs": 3}
    [answer] = llm.generate("hello", **chosen)
    data = b"".join(scored.token.bytes for scored in answer.scores)
    assert data.decode("utf-8", "replace") == answer.content
    for scored in answer.scores:
        assert scored.token == scored.top[0], "greedy: the best one"
        assert [c.logprob for c in scored.top] == sorted(c.logprob for c in scored.top)[::-1]
        assert all(-100 < c.logprob < 0 for c in scored.top)


def test_a_bias_and_penalties_act(llm: LLM) -> None:
    greedy = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 0}

    def ids(**more: object) -> list[int]:
        return [scored.token.id for scored in llm.generate("hello", **greedy, **more)[0].scores]

    assert ids(logit_bias={70: 100}) == [70] * 12
    assert len(set(ids(repetition_penalty=100.0))) == 12
    assert len(set(ids(repetition_penalty=0.01))) == 1


def test_a_conversation_is_answered(llm: LLM) -> None:
    chosen = {"thinking": False, "max_tokens": 3, "temperature": 0}
    one = llm.chat([Message("user", "Hi")], **chosen)
    two = llm.chat([{"role": "user", "content": "Hi"}], **chosen)
    assert one.content == two.content
    assert one.finish
    assert one.finish.usage.prompt_tokens == 6


def test_a_list_of_ids_and_prompts_is_refused(llm: LLM) -> None:
    with pytest.raises(BadRequest, match="prompts mix token ids with prompts"):
        llm.generate([5, "hello", [6]])


def test_bad_options_are_told_and_the_model_goes_on(llm: LLM) -> None:
    for bad in ({"temperature": 9}, {"no_such_option": 1}, {"stop": ("",)}, {"max_tokens": 0}):
        with pytest.raises(BadRequest):
            llm.generate("x", **bad)
    with pytest.raises(BadRequest, match="role"):
        llm.chat([{"content": "Hi"}])
    with pytest.raises(BadRequest, match="empty"):
        llm.generate(["x", ""], max_tokens=1)
    assert llm.generate("x", max_tokens=1)[0].finish


def test_bad_settings_are_told(folder: Path) -> None:
    with pytest.raises(BadSetting, match="no_such_setting"):
        LLM(folder, no_such_setting=1)


def test_streamed_pieces_add_up_to_the_whole_answer(llm: LLM) -> None:
    chosen = {"max_tokens": 8, "temperature": 0}
    streamed = "".join(p.text for p in llm.stream("hello", **chosen) if isinstance(p, Content))
    assert streamed == llm.generate("hello", **chosen)[0].content
    *_, last = llm.stream_chat([Message("user", "Hi")], thinking=False, **chosen)
    assert last == llm.chat([Message("user", "Hi")], thinking=False, **chosen).finish


def test_a_stream_that_is_left_early_leaves_the_model_usable(llm: LLM) -> None:
    pieces = llm.stream("hello", max_tokens=50, temperature=0, ignore_eos=True)
    next(pieces)
    pieces.close()
    assert llm.generate("x", max_tokens=2)[0].finish


@pytest.mark.parametrize("ending", ["break", "raise SystemExit(3)"])
def test_a_process_ends_whose_stream_was_left_open(folder: Path, ending: str) -> None:
    """Where nothing but the end of the interpreter closes it."""
    script = f"""
from relight.llm import LLM

llm = LLM({str(folder)!r}, device="cpu", threads=1)
pieces = llm.stream([5, 6, 7], max_tokens=50)
for piece in pieces:
    print("piece")
    {ending}
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == (0 if ending == "break" else 3), ended.stderr
    assert ended.stdout == "piece\n"
    assert not ended.stderr


def test_an_answer_has_its_form_and_only_tools_that_are_there_can_be_forced(llm: LLM) -> None:
    hello = [Message("user", "Hi")]
    form = {"kind": "choice", "value": ["yes", "no"]}
    calm = {"thinking": False, "seed": 1}
    assert llm.chat(hello, format=form, **calm).content in ("yes", "no")
    assert llm.generate("x", format=form, seed=2)[0].content in ("yes", "no")
    with pytest.raises(BadRequest, match="tool_choice is 'two'"):
        llm.chat(hello, tools=[Tool("one")], tool_choice="two")
    with pytest.raises(BadRequest, match="format"):
        llm.chat(hello, format={"kind": "xml"})
