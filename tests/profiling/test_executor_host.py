"""What the host has: memory for an entry, and the versions of loaded libraries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.profiling.executors import host_memory
from gkestimator.profiling.executors.base import ExecutionError
from gkestimator.profiling.executors.host_memory import available_host_bytes, require_host_memory
from gkestimator.profiling.executors.libraries import cuda_versions
from gkestimator.profiling.plan import PlanEntry, entry_id

GIB = 2**30


def product(op: str = "MatMul") -> PlanEntry:
    """1 GiB of input, 1 GiB of weights, 4 GiB of output."""
    fragment = Fragment(
        opsets={"": 17},
        nodes=(FragmentNode(op_type=op, domain="", attributes={}, inputs=("x", "w"), outputs=("y",)),),
        tensors=(
            FragmentTensor(name="x", dtype=DType.FLOAT, shape=(32768, 8192)),
            FragmentTensor(name="w", dtype=DType.FLOAT, shape=(8192, 32768), role="weight"),
        ),
        outputs=("y",),
    )
    return PlanEntry(id=entry_id(fragment, "fp32"), fragment=fragment, dtype="fp32", source="test")


@pytest.mark.parametrize(
    ("device", "available", "fits"),
    [
        ("cpu", 8 * GIB, True),  # 7 GiB: input, weights twice, output
        ("cpu", 7 * GIB, False),
        ("cuda:0", 3 * GIB, True),  # weights, and one tensor on its way
        ("cuda:0", 2 * GIB, False),
        ("cpu", None, True),
    ],
)
def test_an_entry_must_fit(device: str, available: int | None, fits: bool) -> None:
    if fits:
        require_host_memory(product(), device, available)
        return
    with pytest.raises(
        ExecutionError, match=r"out of memory: the tensors take .* GiB, the host has .* GiB left"
    ):
        require_host_memory(product(), device, available)


def test_of_a_whole_model_results_count_while_somebody_reads_them() -> None:
    """A chain of 40 results of 1 GiB, of which two are there at once, and one that is kept to the end."""
    nodes = [
        FragmentNode(op_type="Relu", domain="", attributes={}, inputs=(f"x{i}",), outputs=(f"x{i + 1}",))
        for i in range(40)
    ]
    x = FragmentTensor(name="x0", dtype=DType.FLOAT, shape=(2**28,))
    fragment = Fragment(
        opsets={"": 17}, nodes=tuple(nodes), tensors=(x,), outputs=("x40", "x7"), pattern="model:chain"
    )
    chain = PlanEntry(id="chain", fragment=fragment, dtype="fp32", source="test")
    require_host_memory(chain, "cpu", int(4 * GIB / 0.9) + 1)  # x0, x7 and two of the chain
    with pytest.raises(ExecutionError, match=r"the tensors take 4\.0 GiB"):
        require_host_memory(chain, "cpu", int(3.9 * GIB / 0.9))


def test_an_operator_without_a_shape_rule_is_judged_by_its_inputs() -> None:
    require_host_memory(product("NoSuchOperator"), "cpu", 4 * GIB)
    with pytest.raises(ExecutionError, match="out of memory"):
        require_host_memory(product("NoSuchOperator"), "cpu", 3 * GIB)


def test_the_container_s_limit_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = available_host_bytes()
    assert found is None or found > 2**20
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path)
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("5000\n")
    assert available_host_bytes() == 4000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_host_bytes() != 4000
    (tmp_path / "memory.max").write_text("many\n")
    assert available_host_bytes() != 4000


LIBRARIES = {
    "libcudart.so.12": "int cudaRuntimeGetVersion(int *v) { *v = 12040; return 0; }",
    "libcuda.so.1": "int cuDriverGetVersion(int *v) { *v = 13020; return 0; }",
    "libcudnn.so.9": "unsigned long cudnnGetVersion(void) { return 90105; }",
    "libcublas.so.12": "int cublasGetProperty(int i, int *v) { *v = (int[]){12, 4, 5}[i]; return 0; }",
    "libcudnn_ops.so.9": "int unrelated;",
}


@pytest.mark.slow
def test_loaded_libraries_tell_their_versions(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = ["7f0000000000-7f0000001000 r-xp 00000000 08:01 1 [heap]", "7f-80 r--p 0 0:0 0"]
    for name, source in LIBRARIES.items():
        (tmp_path / "source.c").write_text(source)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-o", tmp_path / name, tmp_path / "source.c"],
            check=True,
            timeout=60,
        )
        lines += [f"7f0000000000-7f0000001000 r-xp 00000000 08:01 123  {tmp_path / name}"] * 2
    lines.append(
        f"7f0000000000-7f0000001000 r-xp 00000000 08:01 123  {tmp_path / 'libcudart.so.13'} (deleted)"
    )
    maps = tmp_path / "maps"
    maps.write_text("\n".join(lines) + "\n")
    assert cuda_versions(maps) == {
        "cuda": "12.4",
        "cuda_driver": "13.2",
        "cudnn": "9.1.5",
        "cublas": "12.4.5",
    }


def test_a_library_that_does_not_answer_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "libcudnn.so.9").write_text("no library")
    maps = tmp_path / "maps"
    maps.write_text(
        f"7f00-7f01 r-xp 0 08:01 1 {tmp_path / 'libcudnn.so.9'}\n7f00-7f01 r-xp 0 08:01 1 /nowhere/libcuda.so.1\n"
    )
    assert cuda_versions(maps) == {}
    assert cuda_versions(tmp_path / "nothing") == {}
