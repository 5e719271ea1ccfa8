"""The form of the kernels for Volta, as PTX of compute_70 that the driver compiles for the device
that is there: each trial beside its definition, and beside the same trial of the device's own form.

    python -m tools.volta --out FILE [--ptx FOLDER | --nvrtc DIR] [--minutes 1] [--workers 8]

NVRTC of CUDA 13 has forgotten Volta. FOLDER has PTX that one of CUDA 12 compiled before, elsewhere
(tools/carried.py). DIR has such an NVRTC itself, as nvidia-cuda-nvrtc-cu12 unpacks; it is loaded by
its path, whichever torch has loaded. Without either the environment must have one; if it has none,
that is told and is no fault. Which form is compiled a macro says (STEP_FORM), so the code
is what a V100 would run; how fast it is here means nothing. Trials run in several processes beside
each other, since the driver compiles what a trial launches first. Exits with 1 if a check failed.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from relight.kernels.build import Builder, build_all, builder
from relight.kernels.canary import Trial
from relight.kernels.catalogue import kernels
from relight.kernels.nvrtc import NoNvrtc, load
from tools.about import about
from tools.beside import run_all, tell
from tools.carried import Carried, carried

ARCH = "compute_70"
OUTCOME = ("error", "tolerance", "rows_keep_bits", "failed", "good")

Found = dict[str, Any]
Key = tuple[str, str, str]
"""Op, family and shape of a trial."""


def say(text: str) -> None:
    print(text, flush=True)


def library(folder: Path | None) -> Path:
    """NVRTC that knows Volta. Raises NoNvrtc."""
    if folder is None:
        return load(ARCH).library
    found = sorted(folder.rglob("libnvrtc.so.*"))
    if not found:
        raise NoNvrtc(f"{folder} has no libnvrtc.so; unpack nvidia-cuda-nvrtc-cu12 there")
    return load(ARCH, found[-1]).library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ptx", type=Path, help="folder of PTX, which is not compiled here")
    parser.add_argument("--nvrtc", type=Path, help="folder with NVRTC of CUDA 12")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--share", nargs=2, type=int, metavar=("NUMBER", "FROM"))
    args = parser.parse_args()
    if args.share:
        check(args, *args.share)
    else:
        sys.exit(0 if is_good(gather(args)) else 1)


def gather(args: argparse.Namespace) -> Found:
    begun_s = time.monotonic()
    result: Found = {**about(args.device), "form": ARCH, "checks": []}

    def write() -> None:
        result["seconds"] = round(time.monotonic() - begun_s, 1)
        args.out.write_text(json.dumps(result, indent=1) + "\n")

    def take(_name: str, told: Found) -> None:
        if "trials" in told:
            result["trials"] = told["trials"]
        else:
            result["checks"].append(told)
            say(f"check {told}")
        write()

    try:
        result["nvrtc"] = (
            Carried(args.ptx).name if args.ptx else load(ARCH, library(args.nvrtc)).name
        )
        volta = made(args)
        result["kernels"] = len(list(build_all([(volta, kernel) for kernel in kernels(ARCH)])))
    except NoNvrtc as problem:
        given = args.ptx or args.nvrtc
        result["missing" if given else "skipped"] = problem.message
        write()
        return result
    result["build_s"] = round(time.monotonic() - begun_s, 1)
    write()
    base = [sys.executable, "-m", "tools.volta", *sys.argv[1:], "--share"]
    shares = {f"share {n}": [*base, str(n), "0"] for n in range(args.workers)}
    seconds = 60 * args.minutes - (time.monotonic() - begun_s)
    result["not_ended"] = run_all(shares, take, seconds=seconds, workers=args.workers)
    write()
    return result


def made(args: argparse.Namespace) -> Builder:
    if args.ptx:
        return carried(args.ptx, ARCH, say)
    return builder(ARCH, say, args.cache, library(args.nvrtc))


def check(args: argparse.Namespace, number: int, begin: int) -> None:
    """Each `workers`-th trial from `number` on, of these those from `begin` on."""
    import torch

    from relight.kernels.cuda_tools import toolbox
    from relight.kernels.device import answers
    from relight.kernels.launch import cuda_launcher
    from relight.kernels.toolbox import Toolbox
    from relight.kernels.trials import trials

    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    every = trials(Toolbox(made(args), cuda_launcher(device)), device)
    own = {_key(trial): trial for trial in trials(toolbox(device, say, args.cache), device)}
    tell({"trials": len(every)})
    for place, line in enumerate(tried(every[number :: args.workers][begin:], own), begin + 1):
        tell(line)
        if "failed" in line and not answers(device):
            # A fault of a kernel ends what a process can do.
            again = ["-m", "tools.volta", *sys.argv[1:-1], str(place)]
            os.execv(sys.executable, [sys.executable, *again])


def tried(some: Iterable[Trial], own: Mapping[Key, Trial]) -> Iterator[Found]:
    """Each trial, and what came of the device's own form in the same one."""
    from tools.step_kernels import checked

    for trial in some:
        (line,) = checked([trial], ARCH)
        if "failed" not in line and (beside := own.get(_key(trial))):
            (found,) = checked([beside], "native")
            line["native"] = {name: found[name] for name in OUTCOME if name in found}
        yield line


def _key(trial: Trial) -> Key:
    return trial.variant.op, trial.variant.family, trial.shape


def is_good(found: Found) -> bool:
    """Also where nothing could be tried, but for PTX or an NVRTC that was given and is not all
    there."""
    if "skipped" in found:
        return True
    checks = found.get("checks", [])
    whole = len(checks) == found.get("trials") and not found.get("not_ended")
    return whole and all(line["good"] for line in checks)


if __name__ == "__main__":
    main()
