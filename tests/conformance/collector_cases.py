"""What each collector leaves of the same three entries, in the form that its tool writes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from _synthetic_raw import CPU, Measured, small_measured, write_chunk, write_run

from gkestimator.profiling.collectors.registry import collector_class, make_collector
from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.raw import ChunkInfo, document_of, read_chunk
from gkestimator.profiling.records import HostKernel, read_records, record_line

NCU_RANGES = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
NCU_UNITS = {
    "ID": "",
    "Process ID": "",
    "Kernel Name": "",
    "Stream": "",
    "Block Size": "",
    "Grid Size": "",
    "Device": "",
    NCU_RANGES: "",
    "gpu__time_duration.sum": "nsecond",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "%",
    "dram__bytes.sum": "byte",
}
Sample = Callable[[Path, Sequence[Measured]], str]


def kineto_trace(folder: Path, measured: Sequence[Measured]) -> str:
    """A trace of torch.profiler: microseconds, with the fields that it has on an A100."""
    events: list[dict[str, object]] = []
    now, number = 4347229351983.0, 0
    for case in measured:
        begun = now
        for repeat in range(case.repeats):
            for kernel in case.kernels:
                number += 1
                call = {"ts": now, "dur": 2.0, "args": {"correlation": number}}
                events.append(
                    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1} | call
                )
                arguments = {
                    "device": 0,
                    "stream": 7,
                    "correlation": number,
                    "registers per thread": kernel.registers,
                    "shared memory": kernel.shared,
                    "grid": kernel.grid,
                    "block": kernel.block,
                }
                ran = {"ts": now + 3, "dur": kernel.durations_ns[repeat] / 1e3, "args": arguments}
                events.append({"ph": "X", "cat": "kernel", "name": kernel.name, "pid": 0, "tid": 7} | ran)
                now += 5 + kernel.durations_ns[repeat] / 1e3
        label = f"gkestimator:{case.entry.id}#{case.repeats}"
        spanned = {"ts": begun - 1, "dur": now - begun + 2}
        events.append({"ph": "X", "cat": "user_annotation", "name": label, "pid": 1, "tid": 1} | spanned)
        now += 1000
    document = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}], "traceEvents": events}
    (folder / "trace.json.gz").write_bytes(gzip.compress(json.dumps(document, indent=1).encode()))
    return "trace.json.gz"


def ncu_page(folder: Path, measured: Sequence[Measured]) -> str:
    """The raw page that ``ncu --import REPORT --page raw --csv`` prints."""
    lines = [list(NCU_UNITS), list(NCU_UNITS.values())]
    for case in measured:
        for kernel in case.kernels:
            grid, block = (f"({x}, {y}, {z})" for x, y, z in (kernel.grid, kernel.block))
            where = f"1 gkestimator:{case.entry.id}#1:none:none:none:none:none:none"
            head = [str(len(lines)), "1", kernel.name, "7", block, grid, "0", where]
            lines.append([*head, str(kernel.durations_ns[0]), "61.5", "4096"])
    text = "".join(",".join('"' + cell.replace('"', '""') + '"' for cell in line) + "\n" for line in lines)
    (folder / "counters.csv").write_text(text)
    return "counters.csv"


def nsys_export(folder: Path, measured: Sequence[Measured]) -> str:
    """The export of nsys 2023.4, which ``write_chunk`` has written already."""
    del measured
    assert (folder / "capture.sqlite").is_file()
    return "capture.sqlite"


SAMPLES: dict[str, Sample] = {"nsys": nsys_export, "kineto": kineto_trace, "ncu": ncu_page}
"""What each tool leaves. A collector that needs no tool makes its file from the child's records, as it does in a run."""


def own_files(folder: Path, collector: str, measured: Sequence[Measured]) -> tuple[str, ...]:
    """Return the files of a collector without a sample: those that its ``finish`` makes of the child's records."""
    declared = collector_class(collector)
    assert declared.tool is None, f"{collector}: add a sample of its file to SAMPLES in {Path(__file__).name}"
    return make_collector(collector, "cpu").finish(folder, [case.entry.id for case in measured], "")


def raw_folder(raw: Path, collector: str, pass_name: str) -> Path:
    """A raw folder of small_measured under ``collector``; the chunk that it wrote. One that sees no launches measured on a CPU."""
    measured = small_measured()
    sees_launches = bool(collector_class(collector).measures)
    device = {} if sees_launches else {"device": CPU}
    write_run(raw, SweepPlan(runtime="torch", entries=tuple(m.entry for m in measured)), **device)
    chunk = write_chunk(raw, 0, measured, **device)
    if not sees_launches:
        _with_host_kernels(chunk)
        (chunk / "capture.sqlite").unlink()
        changed(chunk, collector=collector, files=own_files(chunk, collector, measured))
        return chunk
    if pass_name == "counters":  # beside the timeline, to which counters are joined
        chunk = write_chunk(raw, 1, measured, pass_name="counters")
    changed(chunk, collector=collector, files=(SAMPLES[collector](chunk, measured),))
    return chunk


def changed(chunk: Path, **how: object) -> ChunkInfo:
    """Rewrite the chunk's description."""
    info: ChunkInfo = replace(read_chunk(chunk), **how)  # type: ignore[arg-type]
    (chunk / "chunk.json").write_text(json.dumps(document_of(info)))
    return info


def _with_host_kernels(chunk: Path) -> None:
    """On a CPU the runtime's own profile says what ran."""
    lines = []
    for record in read_records(chunk / "records.jsonl"):
        kernels = (HostKernel(name="work", durations_us=(20.0,) * (record.repeats or 1)),)
        lines.append(record_line(replace(record, kernels=kernels)))
    (chunk / "records.jsonl").write_text("".join(lines))
