"""Kill commands in their midst and see what they leave: no process, nothing half-written, and a next run that is whole.

    python benchmarks/kill_matrix.py --write docs/appendix/kill-matrix.md
    python benchmarks/kill_matrix.py --only compare,train --signals SIGINT --moments 2

Every command is run undisturbed first, then killed by each signal at moments spread over that time, and run again in
the same place. SIGINT goes to the whole group of processes, as from a terminal; the others to the command alone.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_WORDS = {signal.SIGINT: "Ctrl-C"}
MOMENTS = 10
ORPHANS_S = 5.0
MARK = "GKEST_KILL_MATRIX"
_GKEST = [sys.executable, "-P", "-c", "from gkestimator.cli import main; main()"]
# 128 + n is how a shell shows a process that signal n ended, and how some commands end themselves. Commands that keep a
# journal take SIGTERM as Ctrl-C. 0: it had ended already.
_STATUSES = {
    signal.SIGINT: (130, -2, 0),
    signal.SIGTERM: (143, -15, 130, 0),
    signal.SIGKILL: (-9, 0),
}
_TEMPORARY = (".tmp", ".old", ".lock", ".aside")
_OTHERS = (".ses",)  # ONNX Runtime's own, which it keeps
# Before our first line runs, Python itself answers Ctrl-C with a trace.
_STARTING_S = 0.25


@dataclass(frozen=True)
class Command:
    """Hold a command: its arguments, in a folder beside ``inputs``, and what is to be the same whenever it is whole.

    ``outputs``: files that are whole or absent. ``journal``: a run that was cut off goes on where it was.
    """

    name: str
    arguments: Sequence[str]
    outputs: Sequence[str]
    result: Callable[[Path], object]
    journal: bool = False


@dataclass(frozen=True)
class Cell:
    """Hold what became of one kill: ``wrong`` is empty where all is well."""

    command: str
    signal: signal.Signals
    ended_before: bool
    wrong: tuple[str, ...]
    seconds: float
    lines: int


def _digest(*names: str) -> Callable[[Path], object]:
    def digest(folder: Path) -> object:
        files = sorted(p for name in names for p in _files(folder / name))
        return [(str(p.relative_to(folder)), hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]

    return digest


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]


def _compared(folder: Path) -> object:
    with open(folder / "out" / "results.csv", newline="") as stream:
        return [{k: v for k, v in row.items() if k != "decision_ms"} for row in csv.DictReader(stream)]


def _measured(folder: Path) -> object:
    """Return how often each entry was measured; times differ from run to run."""
    records: Counter[str] = Counter()
    for path in (folder / "raw" / "chunks").glob("[0-9]*/records.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            records[record["entry_id"], record["status"]] += 1  # type: ignore[index]
    return sorted(records.items())


def _paired(folder: Path) -> object:
    with open(folder / "pairs.csv", newline="") as stream:
        return sorted(
            (row["model"], row["batch_size"], row["sm_share_pct"]) for row in csv.DictReader(stream)
        )


def commands(inputs: Path) -> tuple[Command, ...]:
    """Return the commands, whose inputs :func:`prepare` made in ``inputs``."""
    models = [str(inputs / "models" / f"{name}.onnx") for name in ("mobilenet_v2", "resnet50")]
    table = str(inputs / "table.csv")
    placing = ["--workload", str(inputs / "workload.yaml"), "--cluster", str(inputs / "cluster.yaml")]
    simulating = [
        "--table",
        table,
        "--duration-s",
        "120",
        "--requests",
        "requests.csv",
        "-o",
        "simulated.json",
    ]
    cpu = ["--device", "cpu"]
    measuring = [*cpu, "--collector", "none", "--chunk-seconds", "1", "--retries", "0", "-o", "raw"]
    pairing = [*cpu, "--seconds", "0.2", "-o", "pairs.csv"]
    return (
        Command(
            "estimate",
            ["estimate", *models, "--gpu", "T4,L4", "--batch-size", "1,2,4,8", "-o", "table.csv"],
            ["table.csv"],
            _digest("table.csv"),
        ),
        Command(
            "schedule", ["schedule", table, *placing, "-o", "plan.json"], ["plan.json"], _digest("plan.json")
        ),
        Command(
            "simulate",
            ["simulate", str(inputs / "plan.json"), *simulating],
            ["simulated.json", "requests.csv"],
            _digest("simulated.json", "requests.csv"),
        ),
        Command(
            "compare",
            ["compare", str(inputs / "spec.yaml"), "--processes", "2", "-o", "out"],
            ["out/results.csv", "out/results.json", "out/report.md"],
            _compared,
            journal=True,
        ),
        Command(
            "profile run",
            ["profile", "run", str(inputs / "operators.json"), *measuring],
            [],
            _measured,
            journal=True,
        ),
        Command(
            "profile pairs",
            ["profile", "pairs", str(inputs / "models.json"), *pairing],
            ["pairs.csv"],
            _paired,
            journal=True,
        ),
        Command(
            "train",
            ["train", str(inputs / "kernels.csv"), "-o", "bundle"],
            ["bundle/card.json"],
            _digest("bundle"),
        ),
        Command(
            "merge",
            ["merge", *models, "--always", "-o", "merged.onnx"],
            ["merged.onnx"],
            _digest("merged.onnx"),
        ),
    )


def prepare(inputs: Path) -> None:
    """Make what the commands read, in ``inputs``."""
    models = str(inputs / "models" / "*.onnx")
    asked = ["--gpu", "T4,L4", "--dim", "sequence=128", "--batch-size", "1,2,4,8"]
    small = ["--runtime", "onnxruntime", "--cpu"]
    networks = [
        "--models",
        str(inputs / "models" / "mobilenet_v2.onnx"),
        "--models",
        str(inputs / "models" / "resnet50.onnx"),
    ]
    placing = ["--workload", "workload.yaml", "--cluster", "cluster.yaml"]
    spec = {
        "tables": ["table.csv"],
        "policies": ["exclusive", "nexus"],
        "workloads": [{"label": "three", "file": "workload.yaml"}],
        "clusters": [{"label": "small", "file": "cluster.yaml"}],
        "rate_scale": [0.2, 0.4, 0.6, 0.8, 1.0],
        "duration_s": 30,
    }
    (inputs / "spec.yaml").write_text(json.dumps(spec))
    for arguments in (
        ["demo", "--all", "."],
        ["estimate", models, *asked, "-o", "table.csv"],
        ["schedule", "table.csv", *placing, "-o", "plan.json"],
        # The event loop is compiled here, once.
        [
            "simulate",
            "plan.json",
            "--table",
            "table.csv",
            "--duration-s",
            "5",
            "-o",
            "simulated.json",
            "--requests",
            "r.csv",
        ],
        ["profile", "plan", *small, "--entries", "12", "-o", "operators.json"],
        ["profile", "plan", *small, "--whole", *networks, "-o", "models.json"],
        ["profile", "run", "operators.json", "--device", "cpu", "--collector", "none", "-o", "raw"],
        ["profile", "build", "raw", "-o", "kernels.csv"],
    ):
        done = subprocess.run([*_GKEST, *arguments], cwd=inputs, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)}: status {done.returncode}\n{done.stderr}")


class Place:
    """Hold a folder of its own for one cell, whose processes are found by a mark in their environment."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.scratch = folder / "scratch"
        self.work.mkdir()
        self.scratch.mkdir()
        self.mark = uuid.uuid4().hex
        self.said = folder / "stderr"

    def start(self, command: Command) -> subprocess.Popen[bytes]:
        """Start ``command`` here."""
        marked = {MARK: self.mark, "TMPDIR": str(self.scratch), "OMP_NUM_THREADS": "1"}
        with open(self.said, "wb") as errors:
            return subprocess.Popen(
                [*_GKEST, *command.arguments],
                cwd=self.work,
                env=os.environ | marked,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def living(self) -> dict[int, str]:
        """Return the command lines of processes that were started here and live."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() not in (path / "environ").read_bytes():
                    continue
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(path.name)] = line[:100]
        return found

    def temporary(self) -> list[str]:
        """Return what is left of temporary files, here and where temporary files are."""
        here = [
            p for p in self.work.rglob("*") if any(word in p.name for word in _TEMPORARY) or p.name == "lock"
        ]
        scratch = [p for p in self.scratch.iterdir() if p.name not in _OTHERS]
        return [str(p.relative_to(self.work.parent)) for p in (*here, *scratch)]


def undisturbed(command: Command, folder: Path) -> tuple[float, object]:
    """Return the seconds of ``command`` and its result."""
    place = Place(folder)
    begun = time.monotonic()
    status = place.start(command).wait(300)
    seconds = time.monotonic() - begun
    if status != 0 or place.temporary():
        raise SystemExit(
            f"{command.name}: status {status}, left {place.temporary()}\n{place.said.read_text()}"
        )
    return seconds, command.result(place.work)


def kill(command: Command, which: signal.Signals, after_s: float, whole: object, folder: Path) -> Cell:
    """Kill ``command`` by ``which`` after so many seconds, run it again, and judge what is there after either."""
    place = Place(folder)
    begun = time.monotonic()
    process = place.start(command)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    ended_before = process.returncode is not None
    killed = time.monotonic()
    if not ended_before:
        (os.killpg if which is signal.SIGINT else os.kill)(process.pid, which)
    status = process.wait(120)
    seconds = time.monotonic() - killed
    wrong = list(_after_kill(command, which, status, place, killed - begun))
    lines = len(place.said.read_text(errors="replace").splitlines())
    again = place.start(command)
    if again.wait(300) != 0:
        wrong.append(f"again: status {again.returncode}: {place.said.read_text()[-300:]}")
    elif command.result(place.work) != whole:
        wrong.append("again: another result than undisturbed")
    if place.temporary():
        wrong.append(f"again: left {', '.join(place.temporary())}")
    return Cell(command.name, which, ended_before, tuple(wrong), seconds, lines)


def _after_kill(
    command: Command, which: signal.Signals, status: int, place: Place, after_s: float
) -> Iterator[str]:
    if status not in _STATUSES[which]:
        yield f"status {status}"
    until = time.monotonic() + ORPHANS_S
    while place.living() and time.monotonic() < until:
        time.sleep(0.05)
    for pid, line in place.living().items():
        yield f"still there: {line}"
        os.kill(pid, signal.SIGKILL)
    said = place.said.read_text(errors="replace")
    if "Traceback" in said and after_s > _STARTING_S:
        yield f"a trace: {said[-200:]}"
    if "a defect of" in said:
        yield said[-300:]
    there = [(place.work / name).exists() for name in command.outputs]
    if command.outputs and all(there):
        try:
            command.result(place.work)
        except (OSError, ValueError, KeyError) as e:
            yield f"half-written: {e}"
    for name in command.outputs:
        path = place.work / name
        if path.suffix == ".json" and path.exists():
            try:
                json.loads(path.read_bytes())
            except ValueError:
                yield f"half-written: {name}"


def report(cells: Sequence[Cell], times: dict[str, float]) -> str:
    """Return the page: a row for each command and signal."""
    good = sum(not cell.wrong for cell in cells)
    lines = [
        "# Kill matrix",
        "",
        f"`python benchmarks/kill_matrix.py`: **{good} of {len(cells)}** kills left no process after {ORPHANS_S:g} s,",
        "nothing half-written, and the same command run again gave what it gives undisturbed, with no temporary file left.",
        f"Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores.",
        "",
        "| command | undisturbed | signal | kills | had ended before | all well | ended within (longest) |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, seconds in times.items():
        for which in SIGNALS:
            mine = [c for c in cells if (c.command, c.signal) == (name, which)]
            if mine:
                before = sum(c.ended_before for c in mine)
                well = sum(not c.wrong for c in mine)
                longest = max(c.seconds for c in mine)
                lines.append(
                    f"| {name} | {seconds:.1f} s | {_WORDS.get(which, which.name)} | {len(mine)} | {before} | {well} | {longest:.1f} s |"
                )
    bad = [
        f"- {c.command}, {_WORDS.get(c.signal, c.signal.name)}: {'; '.join(c.wrong)}"
        for c in cells
        if c.wrong
    ]
    return "\n".join([*lines, *(["", *bad] if bad else []), ""])


def main() -> int:
    """Run what the command line asks for; return 1 where a kill left something."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="names of commands, comma-separated")
    parser.add_argument("--signals", default=",".join(s.name for s in SIGNALS))
    parser.add_argument("--moments", type=int, default=MOMENTS)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--write", type=Path, metavar="FILE")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill-matrix-") as name:
        root = Path(name)
        inputs = root / "inputs"
        inputs.mkdir()
        prepare(inputs)
        chosen = [c for c in commands(inputs) if asked.only is None or c.name in asked.only.split(",")]
        times: dict[str, float] = {}
        jobs: list[Future[Cell]] = []
        done = 0
        with ThreadPoolExecutor(asked.parallel) as pool:
            for command in chosen:
                times[command.name], whole = undisturbed(command, Path(tempfile.mkdtemp(dir=root)))
                for word in asked.signals.split(","):
                    for moment in range(asked.moments):
                        after_s = times[command.name] * (moment + 0.5) / asked.moments
                        folder = Path(tempfile.mkdtemp(dir=root))
                        jobs.append(pool.submit(kill, command, signal.Signals[word], after_s, whole, folder))
                # One command at a time: the times were taken with nothing beside.
                for job in jobs[done:]:
                    for line in job.result().wrong:
                        print(f"{command.name}, {job.result().signal.name}: {line}", flush=True)
                done = len(jobs)
        cells = [job.result() for job in jobs]
    page = report(cells, times)
    print(page)
    if asked.write is not None:
        asked.write.write_text(page)
    return 1 if any(cell.wrong for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
