"""The commands about compiled kernels: build them ahead of time, list what was built. Knows no
kernel."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from relight.cli import show

if TYPE_CHECKING:
    from relight.kernels.build import Builder, Done, Kernel
    from relight.kernels.cubins import Cubin

app = typer.Typer(
    name="kernels",
    help="Compile the CUDA kernels, and say what they use.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

ARCH = Annotated[
    list[str] | None,
    typer.Option(
        help="sm_70 to sm_90, or compute_70 for code that later drivers translate; may be given "
        "again. Default: this machine's GPU, or all without one."
    ),
]
CACHE = Annotated[
    Path | None, typer.Option(help="Folder that compiled kernels are kept in; default: ~/.cache.")
]
WORKERS = Annotated[int, typer.Option(help="Kernels compiled at once; 0: as many as cores.", min=0)]
NVRTC = Annotated[
    Path | None, typer.Option(help="The libnvrtc.so to compile with; default: this Python's.")
]


@app.command()
def build(
    arch: ARCH = None, cache: CACHE = None, workers: WORKERS = 0, nvrtc: NVRTC = None
) -> None:
    """Compile every kernel that is not in the cache yet. No GPU is needed.

    Example: `relight kernels build --arch sm_70 --arch sm_90`
    """
    built = _built(arch, cache, workers, nvrtc)
    counts: dict[str, int] = {}
    for one, _, _ in built:
        counts[one.arch] = counts.get(one.arch, 0) + 1
    for name, count in counts.items():
        show.line(f"{name}: {count} kernels are ready")


@app.command(name="list")
def list_kernels(
    arch: ARCH = None, cache: CACHE = None, workers: WORKERS = 0, nvrtc: NVRTC = None
) -> None:
    """Show every kernel with its registers, spills and shared memory, compiling what is missing.

    Example: `relight kernels list --arch sm_70`
    """
    rows = [
        (
            one.arch,
            kernel.name,
            str(cubin.usage.registers),
            str(cubin.usage.spill_bytes),
            f"{cubin.usage.shared_bytes:,}",
            f"{len(cubin.code):,}",
        )
        for one, kernel, cubin in _built(arch, cache, workers, nvrtc)
    ]
    numbers = ("registers", "spilled bytes", "shared bytes", "code bytes")
    show.table("Kernels", ("device", "kernel", *numbers), rows, numbers=numbers)
    show.line("Registers and spills are of a thread, shared memory is of a block.")


def _built(
    archs: list[str] | None, cache: Path | None, workers: int, nvrtc: Path | None
) -> "list[tuple[Builder, Kernel, Cubin]]":
    from relight.kernels.build import build_all, builder
    from relight.kernels.catalogue import ARCHITECTURES, kernels
    from relight.kernels.device import cuda_architecture

    def tell(text: str) -> None:
        show.line(f"note: {text}", stderr=True)

    here = cuda_architecture()
    jobs = []
    for arch in archs or ([here] if here else ARCHITECTURES):
        one = builder(arch, tell, cache, nvrtc)
        jobs += [(one, kernel) for kernel in kernels(arch)]
    with _bar(len(jobs)) as done:
        return list(build_all(jobs, workers, done))


@contextmanager
def _bar(count: int) -> "Iterator[Done]":
    columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=show.console(stderr=True), transient=True) as bar:
        task = bar.add_task("build", total=count)
        yield lambda done, total: bar.update(task, completed=done, total=total)
