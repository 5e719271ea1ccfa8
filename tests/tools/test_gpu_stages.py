"""The call that needs an accelerator goes on whatever becomes of one of its stages."""

import fcntl
import json
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from relight.base.settings import Settings
from tools import equal_text, sanitize
from tools.arms import Arm, compare, difference, known
from tools.gpu import (
    STAGES,
    Found,
    Job,
    Stage,
    judge_arms,
    judge_sanitize,
    judge_step,
    judge_step_kernels,
    judge_tests,
    run_stages,
    scratch_place,
)
from tools.gpu_tests import announced, outcome, run

GOOD = "import json, sys; json.dump({'value': 7}, open(sys.argv[1], 'w')); print('said')"
FAILS = GOOD + "; raise SystemExit('no device')"
SILENT = "print('nothing written'); raise SystemExit(3)"
LOCKS = """
import fcntl, subprocess, sys, time
lock = open(sys.argv[1] + ".lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
subprocess.Popen(sleep, pass_fds=[lock.fileno()])
time.sleep(300)
"""
ENDLESS = GOOD + "; import time; time.sleep(60)"


def stage(name: str, code: str, seconds: float = 30.0) -> Stage:
    def command(job: Job) -> tuple[str, ...]:
        return ("-c", code, str(job.file))

    return Stage(name, seconds, command, lambda found: (found.get("value") == 7, f"{len(found)}"))


def results(out: Path) -> dict[str, Found]:
    return {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}


def test_a_stage_that_fails_leaves_what_it_found_and_the_next_one_runs(tmp_path: Path) -> None:
    stages = [stage("bad", FAILS), stage("silent", SILENT), stage("good", GOOD)]
    lines = run_stages(stages, tmp_path / "out", device="cpu", seconds=100, about={"sources": "x"})
    assert [line["good"] for line in lines] == [False, False, True]
    found = results(tmp_path / "out")
    assert set(found) == {"bad", "silent", "good", "summary"}
    assert {one["sources"] for one in found.values()} == {"x"}
    assert (found["bad"]["value"], found["bad"]["ran"]["exit_code"]) == (7, 1)
    assert "no device" in found["bad"]["ran"]["log"]
    assert found["silent"]["ran"]["log"] == ["nothing written"]
    assert found["good"]["ran"]["good"]
    assert [line["stage"] for line in found["summary"]["stages"]] == ["bad", "silent", "good"]


def test_a_stage_without_an_end_is_stopped_and_keeps_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.gpu.LEAST_S", 1.0)
    clock = iter((0.0, 0.0, 0.0, 30.0, 30.0, 30.0, 31.0))
    stages = [stage("endless", ENDLESS, 3.0), stage("good", GOOD)]
    lines = run_stages(stages, tmp_path, device="cpu", seconds=90, clock=lambda: next(clock))
    assert [line["good"] for line in lines] == [False, True]
    assert lines[0]["words"].startswith("stopped after 3 s")
    assert results(tmp_path)["endless"]["value"] == 7


def test_what_a_stopped_stage_has_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock is held as long as one of both processes lives."""
    monkeypatch.setattr("tools.gpu.LEAST_S", 1.0)
    run_stages([stage("locks", LOCKS, 5.0)], tmp_path, device="cpu", seconds=90)
    with (tmp_path / "locks.json.lock").open("w") as lock:
        for _ in range(200):
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(0.1)
    pytest.fail("a process that it had started still holds the lock")


def test_what_an_earlier_call_found_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    run_stages([stage("one", GOOD)], tmp_path, device="cpu", seconds=90)
    run_stages([stage("one", SILENT)], tmp_path, device="cpu", seconds=90)
    assert "value" not in results(tmp_path)["one"]


def test_time_that_a_stage_leaves_is_the_next_ones_and_none_runs_beyond_the_end(
    tmp_path: Path,
) -> None:
    given: list[float] = []

    def noting(name: str, seconds: float) -> Stage:
        def command(job: Job) -> tuple[str, ...]:
            given.append(job.seconds)
            return ("-c", GOOD, str(job.file))

        return Stage(name, seconds, command, lambda found: (True, ""))

    # begun, then for each stage: now, its begin, its end
    clock = iter((0.0, 0.0, 0.0, 20.0, 20.0, 20.0, 85.0, 85.0))
    stages = [noting("a", 50), noting("b", 40), noting("c", 40)]
    lines = run_stages(stages, tmp_path, device="cpu", seconds=90, clock=lambda: next(clock))
    assert given == [50, 70]
    assert [line["words"] for line in lines] == ["", "", "no time was left"]
    assert not lines[2]["good"]


def test_stages_fill_one_call() -> None:
    """Nine of ten minutes: of what is left, the last one has all."""
    assert sum(one.seconds for one in STAGES) == 540
    assert STAGES[-1].name == "tests"


def test_scratch_files_are_in_memory_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.gpu.MEMORY", tmp_path)
    monkeypatch.setattr("tools.gpu.ROOM_BYTES", 1)
    assert scratch_place() == tmp_path
    monkeypatch.setattr("tools.gpu.ROOM_BYTES", 2**80)
    assert scratch_place() is None
    monkeypatch.setattr("tools.gpu.MEMORY", tmp_path / "none")
    assert scratch_place() is None


def test_what_makes_a_stage_good(tmp_path: Path) -> None:
    job = Job(tmp_path / "x.json", tmp_path, "cuda", 100.0, True)
    assert all(all(isinstance(part, str) for part in one.command(job)) for one in STAGES)
    assert judge_tests({"counts": {"passed": 3}, "not_passed": []})[0]
    assert not judge_tests({"counts": {"failed": 1, "passed": 3}, "not_passed": ["x"]})[0]
    assert not judge_tests({})[0]
    check = {"form": "sm_90", "op": "linear", "shape": "FP8", "good": True}
    assert judge_step_kernels({"checks": [check]})[0]
    times = [{"name": "wkv", "us": 3.0}, {"name": "sparse", "failed": "no memory"}]
    good, words = judge_step_kernels({"checks": [check], "times": times})
    assert (good, words) == (True, "1 of 1 checks good, 1 times; could not be timed: sparse")
    good, words = judge_step_kernels({"checks": [check, {**check, "good": False}]})
    assert (good, words.endswith("bad: sm_90 linear FP8")) == (False, True)
    assert not judge_step_kernels({})[0]
    assert judge_arms({"arms": {"a": {"equal": True}}})[0]
    assert not judge_arms({"arms": {"a": {"equal": True}, "b": {"equal": False}}})[0]
    assert not judge_arms({})[0]
    line = {"layer": "csa", "rows": 6, "context": 8192, "us": 283.4}
    one, same = {**line, "rows": 1, "us": 155.0}, {**line, "us": 185.2, "experts": "same"}
    models = {"v4": {"layers": [one, line, same], "left": []}}
    told = "v4 csa 1 rows at 8,192: 155 µs; v4 csa 6 rows at 8,192 on the same experts: 185 µs"
    assert judge_step({"models": models, "finished": True}) == (True, told)
    models["v4"]["left"] = ["ops"]
    assert judge_step({"models": models, "finished": False}) == (
        False,
        f"{told}; v4: no time for ops",
    )
    assert not judge_step({})[0]


CLEAN = "attend 512\nall kernels were launched\n========= ERROR SUMMARY: 0 errors"
RACE = (
    "========= Error: Race reported between Write access at step_linear+0x230 in source.cu:31\n"
    "=========     and Read access at step_linear+0x450 [8 hazards]\n" + CLEAN
)
OTHERS = "=========     at at::native::sort(int)+0x10\n" + CLEAN.replace(": 0", ": 3")
REFUSED = (
    '========= Program hit CUDA_ERROR_NOT_FOUND (error 500) due to "named symbol not found" on CUDA'
    " API call to cuGetProcAddress_v2.\n"
)


@pytest.mark.parametrize(
    ("log", "good", "words"),
    [
        (CLEAN, True, "clean"),
        (RACE, False, "faults in step_linear"),
        (OTHERS, True, "clean; 3 in kernels of others"),
        (
            2 * REFUSED + OTHERS,
            True,
            "clean; calls refused: 2 of cuGetProcAddress_v2 (CUDA_ERROR_NOT_FOUND); "
            "1 in kernels of others",
        ),
        ("attend 512", False, "did not come to its end"),
        ("========= Error: Device not supported", True, "does not run on this machine"),
    ],
)
def test_what_a_sanitizer_prints_is_judged(log: str, good: bool, words: str) -> None:
    found = sanitize.judged(log, {"step_linear"})
    assert (found["good"], found["words"]) == (good, words)
    assert judge_sanitize({"program": "x", "tools": {"racecheck": found}})[0] == good
    assert judge_sanitize({"program": None})[0]
    assert not judge_sanitize({})[0]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "[gw1] [ 12%] PASSED tests/a.py::test_b[cuda-1] ",
            ("tests/a.py::test_b[cuda-1]", "passed"),
        ),
        ("tests/a.py::test_b", None),
        ("[gw0] [ 3%] FAILED x.py::test", ("x.py::test", "failed")),
    ],
)
def test_outcomes_are_read_off_lines(line: str, found: tuple[str, str] | None) -> None:
    assert outcome(line) == found
    assert announced(line) is None


def test_tests_that_hang_in_silence_are_ended_and_what_came_is_kept(tmp_path: Path) -> None:
    code = "print('2 workers [3 items]'); print('[gw0] [ 9%] PASSED a.py::test_b', flush=True)"
    code += "; import time; time.sleep(60)"
    out, begun_s = tmp_path / "tests.json", time.monotonic()
    assert run([sys.executable, "-c", code], out, 2.0) != 0
    assert time.monotonic() - begun_s < 30
    found = json.loads(out.read_text())
    assert found["outcomes"] == {"a.py::test_b": "passed"}
    assert found["counts"] == {"passed": 1, "not_run": 2}


def test_the_first_difference_is_told() -> None:
    assert difference({"a": [1, 2]}, {"a": [1, 2]}) == ""
    assert difference({"a": [1, 3]}, {"a": [1, 2]}) == "request a: token 1"
    assert difference({"a": [1]}, {"a": [1, 2]}) == "request a: token -1"


def test_texts_are_compared_on_a_processor_too(tmp_path: Path, monkeypatch) -> None:
    """Where nothing can be recorded and no kernel runs: refused by reason, which is no fault."""
    monkeypatch.setattr(equal_text, "LENGTHS", (1, 9))
    out = tmp_path / "texts.json"
    arguments = ["equal_text", "--out", str(out), "--device", "cpu", "--tokens", "2"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        equal_text.main()
    assert ended.value.code == 0
    arms = json.loads(out.read_text())["arms"]
    compared = {name: arm.get("compared_with") for name, arm in arms.items() if "tokens" in arm}
    assert compared == {
        "reference: eager, together": None,  # the first that ran
        "reference: eager, alone": "eager, together",
        "v4_dspark: eager, no guesses": None,
        "v4_dspark: eager, guesses": "eager, no guesses",
        "v41: eager, no guesses": None,
        "v41: eager, guesses": "eager, no guesses",
    }
    assert all(arm["equal"] for arm in arms.values())
    assert arms["reference: eager, together"]["tokens"] == 7
    assert "graphs is on, and steps on cpu" in arms["reference: recorded, together"]["refused"]
    assert "kernels is 'cuda'" in arms["cuda: eager, alone"]["refused"]


def test_a_device_that_is_lost_begins_the_arms_behind_anew(tmp_path: Path, monkeypatch) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr("tools.arms.answers", lambda device: False)
    monkeypatch.setattr("tools.arms.os.execv", lambda _, again: begun.append(again))
    monkeypatch.setattr("tools.arms.sys.orig_argv", ["python", "-m", "tools.equal_text", "--out"])
    out, base = tmp_path / "arms.json", Settings(model=str(tmp_path / "nothing"), device="cpu")
    arms = [Arm("a", "one", {}), Arm("a", "two", {})]
    compare(arms[:1], base, [], out)
    assert [again[1:] for again in begun] == [["-m", "tools.equal_text", "--out", "--go-on"]]
    assert list(known(out, True)) == ["a: one"]
    assert known(out, False) == {}
    compare(arms, base, [], out, known(out, True))
    assert len(begun) == 2
