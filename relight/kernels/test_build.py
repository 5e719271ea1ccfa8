from pathlib import Path

import pytest

from relight.base.errors import BadSetting
from relight.kernels import nvrtc
from relight.kernels.build import Builder, Kernel, Sources, build_all
from relight.kernels.catalogue import ARCHITECTURES, kernels
from relight.kernels.cubins import CubinCache
from relight.kernels.forms import UNIT, form_of
from relight.kernels.nvrtc import Compiled, CompileError, NoNvrtc, Nvrtc
from relight.kernels.ptxas import Usage, usage

KERNEL = Kernel("toy", "cuda/small.cu", "slot_sum", (("PDL", 0),))


class FakeNvrtc:
    """Compiles nothing and counts."""

    def __init__(self, name: str = "12.9") -> None:
        self.name = name
        self.compiled: list[list[str]] = []

    def check_architecture(self, arch: str) -> None:
        pass

    def compile(self, source: str, headers: dict, arch: str, options: list[str]) -> Compiled:
        if any("BROKEN" in option for option in options):
            raise CompileError("line 3: no")
        self.compiled.append(options)
        return Compiled(f"{arch} {options}".encode(), "")


def builder(folder: Path, fake: FakeNvrtc, arch: str = "sm_90") -> Builder:
    return Builder(fake, arch, CubinCache(folder, pytest.fail))  # type: ignore[arg-type]


def test_a_kernel_is_compiled_once(tmp_path: Path) -> None:
    fake = FakeNvrtc()
    first = builder(tmp_path, fake).build(KERNEL)
    assert builder(tmp_path, fake).build(KERNEL) == first
    assert len(fake.compiled) == 1


def test_whatever_makes_other_code_makes_another_key(tmp_path: Path, monkeypatch) -> None:
    keys = {
        builder(tmp_path, FakeNvrtc()).key(KERNEL),
        builder(tmp_path, FakeNvrtc(), "sm_80").key(KERNEL),
        builder(tmp_path, FakeNvrtc("12.6")).key(KERNEL),
        builder(tmp_path, FakeNvrtc()).key(
            Kernel("toy", KERNEL.source, KERNEL.entry, (("PDL", 1),))
        ),
        builder(tmp_path, FakeNvrtc()).key(Kernel("toy", "linear/step.cu", KERNEL.entry, ())),
    }
    text = Sources.text
    monkeypatch.setattr(Sources, "text", lambda self, path: text(self, path) + "// edited")
    keys.add(builder(tmp_path, FakeNvrtc()).key(KERNEL))
    headers = {**Sources().headers, "lanes.cuh": "// edited"}
    monkeypatch.setattr(Sources, "headers", headers)
    keys.add(builder(tmp_path, FakeNvrtc()).key(KERNEL))
    assert len(keys) == 7


def test_the_name_people_read_makes_no_other_key(tmp_path: Path) -> None:
    one = builder(tmp_path, FakeNvrtc())
    assert one.key(KERNEL) == one.key(Kernel("other", KERNEL.source, KERNEL.entry, KERNEL.macros))


def test_all_are_built_in_order_and_progress_ends_at_all(tmp_path: Path) -> None:
    one = builder(tmp_path, FakeNvrtc())
    some = [Kernel(str(n), KERNEL.source, KERNEL.entry, (("N", n),)) for n in range(9)]
    seen: list[tuple[int, int]] = []
    built = list(build_all([(one, k) for k in some], 3, lambda *done: seen.append(done)))
    assert [kernel for _, kernel, _ in built] == some
    assert seen == [(n, 9) for n in range(1, 10)]


def test_a_source_that_does_not_compile_says_so(tmp_path: Path) -> None:
    broken = Kernel("bad", KERNEL.source, KERNEL.entry, (("BROKEN", 1),))
    with pytest.raises(CompileError, match="line 3"):
        list(build_all([(builder(tmp_path, FakeNvrtc()), broken)]))


def test_without_nvrtc_one_line_says_what_to_do(monkeypatch) -> None:
    monkeypatch.setattr(nvrtc, "find", list)
    with pytest.raises(NoNvrtc, match=r"pip install 'relight\[cuda\]'") as caught:
        nvrtc.load("sm_90")
    assert "\n" not in caught.value.message


def test_a_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    path = tmp_path / "libnvrtc.so.12"
    path.write_text("no library")
    with pytest.raises(NoNvrtc, match=str(path)):
        nvrtc.load("sm_90", path)


def test_another_version_that_answers_is_named(tmp_path: Path) -> None:
    (tmp_path / "libnvrtc-builtins.so.12.9").write_text("")
    path = tmp_path / "libnvrtc.so.12"
    nvrtc.check_version(path, (12, 9))
    with pytest.raises(NoNvrtc, match=r"12\.6 answers .*12\.9: another NVRTC was loaded first"):
        nvrtc.check_version(path, (12, 6))
    with pytest.raises(NoNvrtc, match=r"is 10\.2; wanted 11\.8"):
        nvrtc.check_version(path, (10, 2))


def test_an_architecture_that_nvrtc_does_not_know_is_named() -> None:
    modern = object.__new__(Nvrtc)
    modern.library, modern.version, modern.architectures = Path("lib"), (13, 0), (75, 80, 90)
    modern.check_architecture("sm_80")
    with pytest.raises(NoNvrtc, match=r"13\.0 at lib does not compile for sm_70.*nvrtc-cu12"):
        modern.check_architecture("sm_70")
    with pytest.raises(BadSetting, match="wanted sm_NN"):
        modern.check_architecture("volta")


def test_cuda_12_is_found_before_later_ones(tmp_path: Path) -> None:
    for folder, number in (("cu13", 13), ("cuda_nvrtc", 12)):
        (tmp_path / folder / "lib").mkdir(parents=True)
        (tmp_path / folder / "lib" / f"libnvrtc.so.{number}").write_text("")
    found = nvrtc.libraries(tmp_path)
    assert [path.name for path in found] == ["libnvrtc.so.12", "libnvrtc.so.13"]


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'other' for 'sm_70'
ptxas info    : Used 255 registers, 9 bytes smem
ptxas info    : Compiling entry function 'mine' for 'sm_70'
ptxas info    : Function properties for mine
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 8 bytes cumulative stack size, 4608 bytes smem
ptxas info    : Compiling entry function 'last' for 'sm_70'
ptxas info    : Used 17 registers, 380 bytes cmem[0]
"""


def test_the_assembler_is_read_entry_by_entry() -> None:
    assert usage(LOG, "mine") == Usage(128, 28, 8, 4608)
    assert usage(LOG, "last") == Usage(registers=17)
    assert usage("", "mine") == Usage()


LENGTHS = {
    128: (1024, 2048, 4096, 8192, 12288, 384),
    32: (1280, 2304, 5120, 6144, 8192, 15360, 128),
}


def fp8_lengths() -> list[tuple[tuple[int, int], int]]:
    """(K, tiles of tokens) and block, of both models and of a length that is cut by a rule."""
    return [((k, t), block) for block, some in LENGTHS.items() for k in some for t in (1, 2)]


def test_a_block_gets_the_shared_memory_it_asks_for() -> None:
    from relight.kernels.experts import cuda as experts
    from relight.kernels.linear import cuda as linear

    for arch in ARCHITECTURES:
        form = form_of(arch)
        walks = [linear.fp8_walk(form, *of, block=b) for of, b in fp8_lengths()]
        dense = (*linear.V4_BF16, *linear.V41_BF16, 192)
        walks += [
            linear.bf16_walk(form, k, t, n)
            for k in dense
            for t in (1, 2)
            for n in linear.BF16_OUTPUTS
        ]
        walks += [experts.gate_up_walk(form, k) for k in (4096, 5120, 384)]
        walks += [
            experts.down_walk(form, k, few=f) for k in (2048, 2304, 128) for f in (False, True)
        ]
        for walk in walks:
            sums = walk.slices * walk.row_warps * 16 * walk.tiles * 17 * 4
            assert walk.ring_bytes + sums <= form.shared_limit, (arch, walk)
            assert walk.threads <= (512 if form.copies else 256)


def test_the_cut_of_k_is_one_for_any_number_of_rows() -> None:
    """Or rows would depend on their company: only the tile of tokens may vary."""
    from relight.kernels.experts import cuda as experts
    from relight.kernels.linear import cuda as linear

    for arch in ARCHITECTURES:
        form = form_of(arch)
        for block, lengths in LENGTHS.items():
            for k in lengths:
                assert len({linear.fp8_walk(form, k, t, block=block).slices for t in (1, 2)}) == 1
        for k in (*linear.V4_BF16, *linear.V41_BF16):
            walks = [linear.bf16_walk(form, k, t, n) for t in (1, 2) for n in linear.BF16_OUTPUTS]
            assert len({walk.slices for walk in walks}) == 1
        for k in (*experts.V4_WIDTHS, *experts.V41_WIDTHS):
            for product in (experts.gate_up_walk, experts.down_walk):
                walks = [product(form, k, few=few) for few in (False, True)]
                assert len({(walk.slices, walk.block_rows) for walk in walks}) == 1


def test_units_are_whole_and_no_more_than_are_unrolled() -> None:
    from relight.kernels.cuts import MOST_UNITS, objection, slices_of, walk_of

    for bits, unit in UNIT.items():
        for inner in range(unit, 200 * unit, unit):
            if objection(bits, inner):
                assert inner // unit // slices_of(bits, inner) > MOST_UNITS
                continue
            walk = walk_of(bits, inner)
            assert walk.units * walk.slices * unit == inner
            assert 1 <= walk.ahead <= walk.units <= MOST_UNITS
        assert objection(bits, 17 * unit)
        assert objection(bits, unit // 2)
        assert objection(bits, 0)


def test_names_are_distinct() -> None:
    for arch in ARCHITECTURES:
        names = [kernel.name for kernel in kernels(arch)]
        assert len(set(names)) == len(names)
