"""The NVTX client against an injection library of our own (built by the C compiler, if there is one)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gkestimator.profiling.executors.nvtx_ranges import INJECTION_VARIABLE, NvtxError, NvtxRanges

# What a profiler does at its end of the protocol, written down from the public headers of NVTX 3: it asks for the tables
# of slots, stores its functions, and checks what it is handed.
SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef void (*fn)(void);
typedef struct { size_t struct_size; int (*module)(int, fn ***, unsigned *); } callbacks;
typedef struct { size_t struct_size; uint32_t version, reserved; void (*set)(uint32_t); } version_info;
typedef struct {
  uint16_t version, size; uint32_t category; int32_t colorType; uint32_t color; int32_t payloadType, reserved0;
  union { uint64_t u; double d; } payload; int32_t messageType; const char *message;
} attributes;
static void say(const char *what, const char *text) {
  FILE *f = fopen(getenv("TEST_LOG"), "a"); fprintf(f, "%s %s\n", what, text); fclose(f);
}
static char domain[64];
static void initialize(const void *p) { say("initialize", p ? "?" : "null"); }
static void *create(const char *name) { strncpy(domain, name, 63); say("domain", name); return domain; }
static int push(void *d, const attributes *a) {
  if (d != domain || a->version != 2 || a->size != sizeof(attributes) || a->messageType != 1 || a->category
      || a->colorType || a->payloadType) { say("bad", "attributes"); return -1; }
  say("push", a->message); return 0;
}
static int pop(void *d) { say("pop", d == domain ? "same" : "other"); return 0; }
int InitializeInjectionNvtx2(const void *(*ask)(uint32_t)) {
  const char *mode = getenv("TEST_MODE");
  if (!strcmp(mode, "refuse")) return 0;
  const callbacks *c = ask(1); const version_info *v = ask(3);
  if (!c || c->struct_size < sizeof(callbacks) || !v || v->version < 2 || ask(99)) return 0;
  v->set(2);
  fn **table; unsigned size;
  static const unsigned sizes[] = {0, 16, 16, 16, 10, 16, 8};
  for (int m = 1; m <= 6; m++) {
    if (!c->module(m, &table, &size) || size != sizes[m] || table[0] || table[size]) return 0;
    for (unsigned i = 1; i < size; i++) if (!table[i] || *table[i]) return 0;
  }
  if (c->module(7, &table, &size) || c->module(0, &table, &size)) return 0;
  if (!strcmp(mode, "idle")) return 1;
  if (!c->module(5, &table, &size)) return 0;
  *table[15] = (fn)initialize; *table[12] = (fn)create; *table[4] = (fn)push; *table[5] = (fn)pop;
  return 1;
}
"""
PROGRAM = """
from gkestimator.profiling.executors.nvtx_ranges import NvtxRanges
ranges = NvtxRanges("gkestimator")
print(ranges.active)
with ranges.range("Conv-fp32-00#7"):
    with ranges.range("inner"):
        pass
try:
    with ranges.range("fails#1"):
        raise ValueError
except ValueError:
    print("through")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("injection")
    (folder / "injection.c").write_text(SOURCE)
    built = folder / "libinjection.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", built, folder / "injection.c"],
        check=True,
        timeout=60,
        capture_output=True,
    )
    return built


def run(library: Path | None, log: Path, mode: str = "record") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TEST_LOG": str(log), "TEST_MODE": mode}
    environment.pop(INJECTION_VARIABLE, None)
    if library is not None:
        environment[INJECTION_VARIABLE] = str(library)
    return subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_profiler_is_handed_its_slots_and_called_in_order(library: Path, tmp_path: Path) -> None:
    done = run(library, tmp_path / "log")
    assert done.stdout.splitlines() == ["True", "through"], done.stderr
    assert (tmp_path / "log").read_text().splitlines() == [
        "initialize null", "domain gkestimator", "push Conv-fp32-00#7", "push inner", "pop same", "pop same",
        "push fails#1", "pop same",
    ]  # fmt: skip


@pytest.mark.parametrize(("mode", "says"), [("refuse", "refused NVTX"), ("idle", "takes no NVTX domains")])
def test_a_profiler_that_takes_no_ranges_is_an_error(
    library: Path, tmp_path: Path, mode: str, says: str
) -> None:
    done = run(library, tmp_path / "log", mode)
    assert done.returncode == 1
    assert says in done.stderr.splitlines()[-1]
    assert not (tmp_path / "log").exists()


def test_without_a_profiler_ranges_do_nothing(tmp_path: Path) -> None:
    done = run(None, tmp_path / "log")
    assert done.stdout.splitlines() == ["False", "through"]


@pytest.mark.parametrize("content", [None, b"no library"])
def test_a_library_that_is_none_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "lib.so"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        NvtxError, match=r"NVTX_INJECTION64_PATH=.*lib\.so: found no NVTX injection library"
    ) as caught:
        NvtxRanges("gkestimator", {INJECTION_VARIABLE: str(path)})
    assert "\n" not in str(caught.value)


def test_a_library_of_another_kind_is_one_line() -> None:
    import _ctypes

    with pytest.raises(NvtxError, match="InitializeInjectionNvtx2"):
        NvtxRanges("gkestimator", {INJECTION_VARIABLE: _ctypes.__file__})
