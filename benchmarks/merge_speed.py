"""Time the merging of two BERT-base-size models (USHER states 2.3 s a GPU), step by step, in fresh processes.

    python benchmarks/merge_speed.py [--runs 5] [--last 2] [--folder DIR]

Two BERTs of 12 layers, 768 wide, 110 M weights each (random, FP32, 418 MiB a file), the second fine-tuned in its last layers.
Every run is a fresh process that calls ``gkestimator.merge`` with the default options, files in the page cache (they were
just read), one thread. ``process`` is all of it from start to end, ``merge`` the call alone, with what it imports before its
first step; ``memory`` is the largest resident size, of it ``own`` what is not pages of mapped files (polled every 10 ms).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "merging"))

_INNER = """
import sys, time, threading
own = 0
def watch():
    global own
    while True:
        for line in open('/proc/self/status'):
            if line.startswith('RssAnon'):
                own = max(own, int(line.split()[1]))
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
import gkestimator
began, steps = time.perf_counter(), []
def progress(step, done, total):
    steps.append((step, time.perf_counter()))
report = gkestimator.merge(sys.argv[1:3], sys.argv[3], tolerance=float(sys.argv[4]), progress=progress).report
ended = time.perf_counter()
peak = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')]
print('merge', ended - began, sep='\\t')
print('peak', int(peak[0]) / 1024, sep='\\t')
print('own', own / 1024, sep='\\t')
print('pairs', report.pairs, sep='\\t')
print('saved', report.saved_bytes / 2**20, sep='\\t')
for (step, at), (_, after) in zip(steps, [*steps[1:], ('', ended)]):
    print('step ' + step, after - at, sep='\\t')
"""


def once(first: Path, second: Path, out: Path, tolerance: float) -> dict[str, float]:
    """One fresh process."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-c", _INNER, str(first), str(second), str(out), str(tolerance)],
        check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found = {"process": time.perf_counter() - began}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("\t")
        found[name] = found.get(name, 0.0) + float(value)
    return found


def main() -> int:
    """Make the models, merge them a few times, print medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--last", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    import families

    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        first, second, near = (Path(folder, f"{name}.onnx") for name in ("first", "second", "near"))
        base = families.bert_like(
            layers=12, width=768, heads=12, vocabulary=30522, positions=512, sequence=128
        )
        families.saved(base, first)
        families.saved(families.sibling(base, last=asked.last), second)
        families.saved(families.nudged(base), near)
        del base
        size = first.stat().st_size / 2**20
        print(f"two files of {size:,.0f} MiB; medians of {asked.runs} runs")
        for title, other in (("last layers fine-tuned", second), ("all weights within 1e-7", near)):
            runs = [once(first, other, Path(folder, "merged.onnx"), 1e-7) for _ in range(asked.runs)]
            middle = {name: median(r[name] for r in runs) for name in runs[0]}
            print(
                f"\n{title}: {middle['pairs']:.0f} operators merged, {middle['saved']:,.0f} MiB of weights read once\n"
                f"  merge {middle['merge']:.2f} s ({min(r['merge'] for r in runs):.2f} to "
                f"{max(r['merge'] for r in runs):.2f}), process {middle['process']:.2f} s\n"
                f"  memory {middle['peak']:,.0f} MiB = {middle['peak'] / (2 * size):.2f} of the weights of both; own "
                f"{middle['own']:,.0f} MiB"
            )
            steps = {name.removeprefix("step "): v for name, v in middle.items() if name.startswith("step ")}
            print("  " + ", ".join(f"{name} {value:.2f} s" for name, value in steps.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
