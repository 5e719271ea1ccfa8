"""What cuda-core makes of our launches, with its real classes and a driver that only notes: runs
without a device, where cuda-core and a C compiler are installed."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
    pytest.mark.skipif(not _is_there("cuda.core"), reason="needs cuda-core"),
    pytest.mark.skipif(not _is_there("cuda.bindings"), reason="needs cuda-bindings"),
]

DRIVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
static int thing;  // context, library and kernel
static void* current;
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuDeviceGetCount(int* n) { *n = 1; return 0; }
int cuDeviceGet(int* d, int at) { *d = at; return 0; }
int cuDevicePrimaryCtxRetain(void** c, int d) { *c = &thing; return 0; }
int cuDevicePrimaryCtxRelease(int d) { return 0; }
int cuCtxSetCurrent(void* c) { current = c; return 0; }
int cuCtxGetCurrent(void** c) { *c = current; return 0; }
int cuCtxGetDevice(int* d) { *d = 0; return 0; }
int cuLibraryLoadData(void** l, const char* code, ...) {
  printf("[\"load\", \"%.4s\"]\n", code + (*code == 127));
  *l = &thing;
  return 0;
}
int cuLibraryUnload(void* l) { printf("[\"unload\"]\n"); return 0; }
int cuLibraryGetKernel(void** k, void* l, const char* name) { *k = &thing; return 0; }
int cuKernelSetAttribute(int which, int value, void* kernel, int device) {
  printf("[\"attribute\", %d, %d]\n", which, value);
  return 0;
}
struct Attribute { int id, pad, value[16]; };
struct Config {
  unsigned grid[3], block[3], shared;
  void* stream;
  struct Attribute* attributes;
  unsigned count;
};
int cuLaunchKernelEx(const struct Config* c, void* kernel, void** p, void** extra) {
  const unsigned *g = c->grid, *b = c->block;
  printf("[\"launch\", [%u, %u, %u], [%u, %u, %u], ", g[0], g[1], g[2], b[0], b[1], b[2]);
  printf("%u, %ld, [", c->shared, (long)c->stream);
  for (unsigned i = 0; i < c->count; i++)
    printf("[%d, %d]", c->attributes[i].id, c->attributes[i].value[0]);
  printf("], [%ld, %d, %g, ", *(long*)p[0], *(int*)p[1], *(float*)p[2]);
  printf("%ld, %ld]]\n", *(long*)p[3], *(long*)p[4]);
  fflush(stdout);
  return 0;
}
int cuGetErrorString(int e, const char** s) { *s = "an error"; return 0; }
int cuGetErrorName(int e, const char** s) { *s = "ERROR"; return 0; }
int cuGetProcAddress_v2(const char* name, void** found, int v, unsigned long flags, int* status) {
  Dl_info mine;
  dladdr((void*)cuInit, &mine);
  *found = strncmp(name, "cu", 2) ? 0 : dlsym(dlopen(mine.dli_fname, RTLD_NOW | RTLD_NOLOAD), name);
  if (status) *status = *found ? 0 : 1;
  return *found ? 0 : 500;
}
int cuGetProcAddress(const char* name, void** found, int v, unsigned long flags) {
  return cuGetProcAddress_v2(name, found, v, flags, 0);
}
"""

PROGRAM = """
import importlib, sys, warnings
warnings.simplefilter("error")
import torch
from relight.kernels.cubins import Cubin
from relight.kernels.launch import CudaLauncher, Long
from relight.kernels.ptxas import Usage

core = importlib.import_module("cuda.core")
driver = importlib.import_module("cuda.bindings.driver")
current = [0]
launcher = CudaLauncher(0, lambda: current[0], core, driver)
x, early = torch.zeros(4), hasattr(core.LaunchConfig, "programmatic_stream_serialization")
print(f'["x", {x.data_ptr()}, {int(early)}]')
sys.stdout.flush()
large = launcher.load(Cubin(b"\\x7fELF", Usage()), "a", threads=256, ring_bytes=65536, early=True)
plain = launcher.load(Cubin(b"// PTX", Usage()), "b", threads=32)
for current[0] in (0, 119):
    large((3, 2), x, 5, 0.5, Long(2**63 + 1), None)
plain((1, 70), x, -1, 2.0, Long(3), None)
"""


def test_launches_reach_the_driver_as_they_were_meant(tmp_path: Path) -> None:
    """On the default stream and on another, without a warning; what was loaded stays."""
    source, library = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text(DRIVER)
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", library, source], check=True)
    path = os.pathsep.join(filter(None, (*sys.path, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (_, address, knows_early), *heard = (json.loads(line) for line in done.stdout.splitlines())
    grids = ([3, 2, 1], [256, 1, 1], 65536)
    early = [[6, 1]] if knows_early else []
    numbers = [address, 5, 0.5, -(2**63) + 1, 0]
    expected = [
        ["load", "ELF"],
        ["attribute", 8, 65536],
        ["load", "// P"],
        ["launch", *grids, 0, early, numbers],
        ["launch", *grids, 119, early, numbers],
        ["launch", [1, 70, 1], [32, 1, 1], 0, 119, [], [address, -1, 2.0, 3, 0]],
    ]
    assert heard[: len(expected)] == expected
    assert all(one == ["unload"] for one in heard[len(expected) :])  # at the end
