"""The call that needs an accelerator goes on whatever becomes of one of its stages."""

import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from relight.base.settings import Settings
from relight.kernels.canary import Trial
from relight.kernels.catalogue import kernels
from relight.kernels.cuda_tools import VARIANTS
from relight.lab.audit import CHECKS
from tools import audit, equal_text, launches, sanitize, volta
from tools.about import command
from tools.arms import Arm, compare, compared, difference, known
from tools.beside import run_all
from tools.gpu import run_stages, scratch_place
from tools.gpu_report import dealt
from tools.gpu_stages import (
    MINUTES,
    STAGES,
    Found,
    Job,
    Stage,
    judge_arms,
    judge_audit,
    judge_sanitize,
    judge_sm70,
    judge_step,
    judge_step_kernels,
    judge_tests,
)
from tools.gpu_tests import run

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


MEETS = """
import pathlib, sys, time
own = pathlib.Path(sys.argv[1])
assert (own.parent / "first.json").exists(), "what runs alone comes first"
(own.parent / (own.stem + ".here")).touch()
while len(list(own.parent.glob("*.here"))) < 2:
    time.sleep(0.05)
"""


def test_lanes_run_beside_each_other_behind_what_runs_alone(tmp_path: Path) -> None:
    one, two = (replace(stage(name, MEETS + GOOD), lane=name) for name in ("one", "two"))
    last = replace(stage("last", GOOD, 20.0), lane="two")
    lines = run_stages([one, two, last, stage("first", GOOD)], tmp_path, device="cpu", seconds=200)
    names = [line["stage"] for line in lines]
    assert (names[0], set(names)) == ("first", {"first", "one", "two", "last"})
    assert names.index("two") < names.index("last")
    assert all(line["good"] for line in lines)


def test_a_lane_has_all_the_time_that_is_left(tmp_path: Path) -> None:
    given: list[float] = []

    def command(job: Job) -> tuple[str, ...]:
        given.append(job.seconds)
        return ("-c", GOOD, str(job.file))

    # begun; left to lanes; then for each stage: now, its begin, its end
    clock = iter((0.0, 10.0, 10.0, 10.0, 60.0, 60.0, 60.0, 70.0))
    lane = [Stage(name, 40, command, lambda found: (True, ""), "lane") for name in ("a", "b")]
    run_stages(lane, tmp_path, device="cpu", seconds=100, clock=lambda: next(clock))
    assert given == [50, 40]


def test_stages_fill_one_call() -> None:
    """What runs alone, and then each lane."""
    seconds: dict[str, float] = {}
    for one in STAGES:
        seconds[one.lane] = seconds.get(one.lane, 0) + one.seconds
    alone = seconds.pop("")
    assert {alone + lane for lane in seconds.values()} == {60 * MINUTES}


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
    ptx = {**check, "family": "step"}
    whole: Found = {"checks": [ptx], "trials": 1, "not_ended": {}}
    assert judge_sm70(whole) == (True, "1 of 1 checks good")
    assert not judge_sm70({**whole, "trials": 2})[0]
    assert judge_sm70({**whole, "checks": [{**ptx, "good": False}]}) == (
        False,
        "0 of 1 checks good; bad: linear step FP8",
    )
    assert judge_sm70({"skipped": "no NVRTC"}) == (True, "not tried: no NVRTC")
    assert judge_sm70({"missing": "no PTX"}) == (False, "no PTX")
    assert not judge_sm70({})[0]
    kept = {"verdict": "kept", "text": "text", "detail": "3 tokens"}
    arms = {"recorded": {"promises": [kept, kept]}}
    assert judge_audit({"arms": arms, "not_ended": {}}) == (True, "recorded: 2 kept")
    assert not judge_audit({"arms": arms})[0]
    late = {"recorded: threads": ["no time was left"]}
    good, words = judge_audit({"arms": arms, "not_ended": late})
    assert (good, words) == (False, "recorded: 2 kept; recorded: threads: no time was left")
    arms = {"eager": {"promises": [{**kept, "verdict": "not kept"}]}}
    good, words = judge_audit({"arms": arms, "not_ended": {}})
    assert (good, words) == (False, "eager: 1 not kept; NOT KEPT: text (3 tokens)")
    arms = {"eager": {"promises": [{**kept, "verdict": "not checked"}]}}
    assert not judge_audit({"arms": arms, "not_ended": {}})[0]
    assert not judge_audit({})[0]
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


@pytest.mark.parametrize(
    ("log", "good", "words"),
    [
        (CLEAN, True, "clean"),
        (RACE, False, "faults in step_linear"),
        (OTHERS, True, "clean; 3 in kernels of others"),
        ("attend 512", False, "did not come to its end"),
        ("========= Error: Device not supported", True, "does not run on this machine"),
    ],
)
def test_what_a_sanitizer_prints_is_judged(log: str, good: bool, words: str) -> None:
    found = sanitize.judged(log, {"step_linear"})
    assert (found["good"], found["words"]) == (good, words)
    tool = sanitize.together({"made": found, "given": found})
    assert (tool["good"], tool["words"]) == (good, f"{words} (0 kernels)")
    judge = judge_sanitize({"program": "x", "tools": {"racecheck": tool}})
    assert judge == (good, f"racecheck: {tool['words']}")
    assert judge_sanitize({"program": None})[0]
    assert not judge_sanitize({})[0]


def test_a_sanitizer_tells_what_was_launched_and_which_part_failed() -> None:
    log = "launched: norm\n1.5 s norm of 5\nlaunched: head\n2.5 s head of 1\n"
    good, cut = sanitize.judged(log + CLEAN, {"row_op"}), sanitize.judged(log, {"row_op"})
    assert (good["launched"], good["seconds"]) == (["norm", "head"], 2.5)
    tool = sanitize.together({"made": good, "given": cut})
    assert (tool["good"], tool["launched"]) == (False, ["head", "norm"])
    assert tool["words"] == "made clean; given did not come to its end (2 kernels)"


def test_a_sanitizer_looks_at_each_kernel_of_steps_and_prompts() -> None:
    """But for the stream that bandwidth is measured by."""
    found = launches.launched("sm_90")
    assert tuple(found) == sanitize.PARTS == launches.PARTS
    names = {kernel.name for some in found.values() for kernel in some}
    assert {kernel.name for kernel in kernels("sm_90")} - names == {"stream-read"}


OUTCOMES = """
import json, os, pathlib, pytest, signal, time
def test_good(): pass
@pytest.mark.parametrize("n", [1, 2, 3])
def test_some(n): assert n != 2, "n is two"
def test_set_up(missing): pass
@pytest.mark.skip
def test_skipped(): pass
def test_cut_short(request):
    report = pathlib.Path(request.config.getoption("--report"))
    while len(json.loads(report.read_text()).get("not_run", ())) != 1:
        time.sleep(0.1)
    os.killpg(0, signal.SIGKILL)
"""


def pytest_of(folder: Path) -> list[str]:
    """A command that runs those."""
    (folder / "test_it.py").write_text(OUTCOMES)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "tools.gpu_report"]
    return [*command, f"--rootdir={folder}", str(folder)]


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "worksteal")], ids=["one", "two"])
def test_outcomes_and_traces_are_kept_of_tests_that_are_cut_short(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    out = tmp_path / "report.json"
    out.write_text('{"device": "none"}')
    assert run([*pytest_of(tmp_path), f"--report={out}", *workers], 300.0) == -signal.SIGKILL
    found = json.loads(out.read_text())
    assert found["device"] == "none"
    assert found["counts"] == {"passed": 3, "failed": 1, "error": 1, "skipped": 1, "not_run": 1}
    assert found["not_passed"] == ["test_it.py::test_set_up", "test_it.py::test_some[2]"]
    assert found["traces"]["test_it.py::test_some[2]"][-2:] == [
        "E   AssertionError: n is two",
        "E   assert 2 != 2",
    ]
    assert "fixture 'missing' not found" in str(found["traces"]["test_it.py::test_set_up"])
    assert found["not_run"] == ["test_it.py::test_cut_short"]
    assert found["passed"] == {"test_it.py": {"test_good": 1, "test_some": 2}}
    assert found["seconds"].keys() == {"test_it.py"}


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "worksteal")], ids=["one", "two"])
def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path, workers: tuple[str, ...]) -> None:
    out = tmp_path / "report.json"
    command = [*pytest_of(tmp_path), f"--report={out}", *workers]
    (tmp_path / "test_it.py").write_text("assert 1 > 2, 'no module'")
    (tmp_path / "test_other.py").write_text("def test_good(): pass")
    assert run(command, 300.0) != 0
    found = json.loads(out.read_text())
    assert found["not_passed"] == ["test_it.py"]
    assert "no module" in str(found["traces"]["test_it.py"])


def test_each_worker_begins_with_what_has_not_passed() -> None:
    names = [f"a.py::t[{n}]" for n in range(6)] + [f"b.py::u[{n}]" for n in range(5)]
    passed = {"a.py": {"t": 6}, "b.py": {"u": 4}}  # one has failed, or is new
    found = dealt(names, passed, 3)
    assert sorted(found) == names
    parts = found[:3], found[3:7], found[7:]  # as they are handed out
    assert [[name[0] for name in part] for part in parts] == [
        ["b", "b", "a"],
        ["b", "b", "a", "a"],
        ["b", "a", "a", "a"],
    ]
    guesses = [f"test_guesses.py::g[{n}]" for n in range(4)]
    found = dealt([*names, *guesses], passed, 3)
    assert sorted(found) == sorted([*names, *guesses])
    parts = found[:5], found[5:10], found[10:]
    assert ["".join(name.removeprefix("test_")[0] for name in part) for part in parts] == [
        "ggbba",
        "gbbaa",
        "gbaaa",
    ]
    assert dealt(names, {"a.py": {"t": 6}, "b.py": {"u": 5}}, 1) == names
    assert dealt(names, {}, 2) == names
    assert dealt([], {}, 2) == []


def test_a_run_begins_with_what_the_report_of_another_has_not_seen_pass(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    known.write_text(json.dumps({"passed": {"test_it.py": {"test_good": 1, "test_some": 2}}}))
    command = [*pytest_of(tmp_path), "--collect-only", f"--known={known}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    names = [line.partition("::")[2] for line in lines if "::" in line]
    assert names[-1] == "test_good"
    assert names[:3] == ["test_some[1]", "test_some[2]", "test_some[3]"]


def test_tests_that_hang_in_silence_are_ended() -> None:
    begun_s = time.monotonic()
    assert run([sys.executable, "-c", "import time; time.sleep(300)"], 1.0) == 124
    assert time.monotonic() - begun_s < 100


TELLS = "from tools.beside import tell; tell({'n': 1}); print('said')"
PROGRAMS = {
    "good": TELLS,
    "bad": TELLS + "; raise SystemExit(3)",
    "endless": TELLS + "; import time; time.sleep(60)",
}


def test_programs_beside_each_other_keep_what_they_told() -> None:
    told: list[tuple[str, Found]] = []
    commands = {name: [sys.executable, "-c", code] for name, code in PROGRAMS.items()}
    found = run_all(commands, lambda *one: told.append(one), seconds=15.0, workers=3)
    assert sorted(told) == [("bad", {"n": 1}), ("endless", {"n": 1}), ("good", {"n": 1})]
    assert found == {
        "bad": ["ended with 3", "said"],
        "endless": ["no time was left for all of it", "said"],
    }
    late = run_all(commands, lambda *one: told.append(one), seconds=0.0, workers=3)
    assert set(late) == set(PROGRAMS)


def test_an_audit_tells_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    found = audit.arms("cuda")
    models = ("ember", "ember, guesses", "ember-v4", "ember-v4, guesses", "v4_dspark")
    assert set(found) == {f"{model}, {how}" for model in models for how in ("recorded", "eager")}
    for name, arm in found.items():
        assert ("speculation" in arm.checks) == (arm.settings.spec == "dspark"), name
        assert (arm.settings.graphs == "on") == name.endswith("recorded")
    checked = {check for arm in found.values() for check in arm.checks}
    assert checked == set(CHECKS) - {"replay", "threads"}  # of V4.1, and of a processor
    audit.one("cpu", "ember-v4, eager", "recorded", 1)
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line.removeprefix("told: "))
    assert (told["check"], told["verdict"]) == ("recorded", "not checked")


def _trial(kernel: Callable[[Tensor], Tensor], shape: str = "[9, 4]") -> Trial:
    return Trial(VARIANTS[0], shape, lambda: torch.ones(9, 4), kernel, lambda x: 2 * x, 1e-6)


def test_each_trial_of_the_form_for_volta_is_beside_the_devices_own() -> None:
    def faults(x: Tensor) -> Tensor:
        raise RuntimeError("an illegal address")

    good, bad = _trial(lambda x: x + x), _trial(faults, "[9, 5]")
    own = {(VARIANTS[0].op, VARIANTS[0].family, "[9, 4]"): _trial(lambda x: x + 3)}
    first, second = volta.tried([good, bad], own)
    assert (first["form"], first["good"], first["error"]) == ("compute_70", True, 0.0)
    assert (first["native"]["good"], first["native"]["error"]) == (False, 1.0)
    assert (second["good"], "native" in second) == (False, False)
    assert second["failed"] == "RuntimeError: an illegal address"


def test_an_nvrtc_that_was_given_and_is_not_there_is_a_fault(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "sm70.json"
    given = ["volta", "--out", str(out), "--device", "cpu", "--nvrtc", str(tmp_path)]
    monkeypatch.setattr("sys.argv", given)
    with pytest.raises(SystemExit) as ended:
        volta.main()
    assert ended.value.code == 1
    found = json.loads(out.read_text())
    assert "has no libnvrtc.so" in found["missing"]
    assert found["device"] == "cpu"


def test_ptx_that_is_not_there_is_a_fault(tmp_path: Path, monkeypatch) -> None:
    """Somebody has carried it here."""
    out = tmp_path / "sm70.json"
    given = ["volta", "--out", str(out), "--device", "cpu", "--ptx", str(tmp_path)]
    monkeypatch.setattr("sys.argv", given)
    with pytest.raises(SystemExit) as ended:
        volta.main()
    assert ended.value.code == 1
    assert "has no PTX" in json.loads(out.read_text())["missing"]


def test_results_name_no_place_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "x.json").touch()
    given = ["-m", "tools.gpu", "--out", str(tmp_path), f"{tmp_path}/x.json", "--minutes", "9"]
    assert command(given) == "python -m tools.gpu --out DIR FILE --minutes 9"


def test_the_first_difference_is_told() -> None:
    assert difference({"a": [1, 2]}, {"a": [1, 2]}) == ""
    assert difference({"a": [1, 3]}, {"a": [1, 2]}) == "request a: token 1"
    assert difference({"a": [1]}, {"a": [1, 2]}) == "request a: token -1"


def test_texts_of_each_model_are_compared_in_all_ways() -> None:
    known = equal_text.groups("cuda", 12)
    arms = {group: {arm.name for arm in one.arms} for group, one in known.items()}
    plain = {"eager, together", "eager, alone", "recorded, together", "recorded, by threes"}
    for model in ("ember", "ember-v4"):
        assert arms[f"{model} by reference"] == plain
        assert {"eager, guesses", "recorded, guesses"} < arms[f"{model} by cuda"] > plain
    drafted = {"eager, no guesses", "eager, guesses", "recorded, guesses"}
    assert arms["v41 by reference"] == arms["v4_dspark by reference"] == drafted
    for group in known.values():
        room = equal_text.CONTEXT
        for request in group.requests():
            assert len(request.prompt) + request.sampling.max_tokens <= room


def test_texts_are_compared_on_a_processor_too(tmp_path: Path, monkeypatch) -> None:
    """Where nothing can be recorded: refused by reason, which is no fault."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "texts.json"
    arguments = ["equal_text", "--out", str(out), "--device", "cpu", "--tokens", "2"]
    arguments += ["--groups", "v41 by reference", "--minutes", "5", "--workers", "1"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        equal_text.main()
    assert ended.value.code == 0
    arms = json.loads(out.read_text())["arms"]
    compared = {name: arm.get("compared_with") for name, arm in arms.items() if "tokens" in arm}
    assert compared == {
        "v41 by reference: eager, no guesses": None,
        "v41 by reference: eager, guesses": "eager, no guesses",
    }
    assert all(arm["equal"] for arm in arms.values())
    assert arms["v41 by reference: eager, guesses"]["tokens"] == 1 + 3 + 5 + 7
    assert arms["v41 by reference: eager, guesses"]["guessed"] > 0
    refused = arms["v41 by reference: recorded, guesses"]["refused"]
    assert "graphs is on, and steps on cpu" in refused


def test_arms_are_compared_in_order_however_they_end() -> None:
    arms = [Arm("a", "one", {}), Arm("a", "two", {}), Arm("b", "one", {}), Arm("b", "two", {})]
    made = {"made": {"r": [1, 2]}}
    found: dict[str, Found] = {"a: two": made}
    assert compared(arms, found, "cuda")["a: two"]["compared_with"] is None
    found["a: one"] = {"made": {"r": [1, 3]}}
    found["b: one"] = {"refused": "no kernel"}
    found["b: two"] = {"difference": "no time was left"}
    lines = compared(arms, found, "cuda")
    assert list(lines) == [arm.key for arm in arms]
    assert (lines["a: two"]["compared_with"], lines["a: two"]["equal"]) == ("one", False)
    assert lines["a: two"]["difference"] == "request r: token 1"
    assert [line["equal"] for line in lines.values()] == [True, False, False, False]
    assert compared(arms, found, "cpu")["b: one"]["equal"]
    assert "no time was left" in judge_arms({"arms": lines})[1]


def test_a_device_that_is_lost_begins_the_arms_behind_anew(tmp_path: Path, monkeypatch) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr("tools.arms.answers", lambda device: False)
    monkeypatch.setattr("tools.arms.os.execv", lambda _, again: begun.append(again))
    monkeypatch.setattr("tools.arms.sys.orig_argv", ["python", "-m", "tools.answer", "--out"])
    out, base = tmp_path / "arms.json", Settings(model=str(tmp_path / "nothing"), device="cpu")
    arms = [Arm("a", "one", {}), Arm("a", "two", {})]
    compare(arms[:1], base, [], out)
    assert [again[1:] for again in begun] == [["-m", "tools.answer", "--out", "--go-on"]]
    assert list(known(out, True)) == ["a: one"]
    assert known(out, False) == {}
    compare(arms, base, [], out, known(out, True))
    assert len(begun) == 2
