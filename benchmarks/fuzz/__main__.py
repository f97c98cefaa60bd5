"""Run the fuzzers and print how many cases ended in what, with the slowest and the largest.

    python -m benchmarks.fuzz --cases 20000 --write docs/appendix/fuzzing.md
    python -m benchmarks.fuzz --only onnx --cases 500 --seed 7 --keep failing/
    python -m benchmarks.fuzz --case onnx:7:123          # one case again, its output shown

A case is bad when it ends in a traceback, says "a defect of gkestimator", takes more than 2 GB or 30 s (--seconds, for
machines that do other work meanwhile), dies of a signal, exits with a status other than 0 to 3, or leaves a temporary file.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fuzz.targets import SHARES, target

MEMORY_BYTES = 2 << 30
_HARD_BYTES = 6 << 30  # where a case is stopped, so that it takes no other process with it
_MOST_OUTPUT_BYTES = 8 << 20
_TEMPORARY = (".tmp", ".partial", ".new", ".old")


@dataclass(frozen=True)
class Case:
    """Name a case: the fuzzer, the seed of the run, and its number in it."""

    target: str
    seed: int
    number: int

    def __str__(self) -> str:
        return f"{self.target}:{self.seed}:{self.number}"


@dataclass(frozen=True)
class Ending:
    """Hold how a case ended: ``wrong`` is empty where it ended as it should; time in seconds, memory in bytes."""

    case: Case
    status: int
    wrong: str
    seconds: float
    memory: int
    last_line: str


@dataclass
class Tally:
    """Count the endings of one fuzzer."""

    statuses: Counter[int] = field(default_factory=Counter)
    bad: list[Ending] = field(default_factory=list)
    slowest: float = 0.0
    largest: int = 0

    def add(self, ending: Ending) -> None:
        """Count one ending."""
        self.statuses[ending.status] += 1
        self.slowest = max(self.slowest, ending.seconds)
        self.largest = max(self.largest, ending.memory)
        if ending.wrong:
            self.bad.append(ending)


def begin(case: Case, cache: Path, folder: Path) -> int:
    """Start a case in a process of its own; return its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        log = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.setsid()
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_AS, (_HARD_BYTES, _HARD_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        rng = random.Random(str(case))
        made = target(case.target).case(rng, cache, folder)
        if callable(made):
            status = made()
        else:
            from gkestimator.cli import run

            status = run(made)
        sys.stdout.flush()
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else 70
    except BaseException:  # noqa: BLE001 - what is not caught is what is looked for
        traceback.print_exc()
    finally:
        os._exit(status)


def _judge(
    case: Case, folder: Path, raw: int, usage: resource.struct_rusage, seconds: float, allowed: float
) -> Ending:
    with open(folder.with_suffix(".log"), "rb") as stream:
        output = stream.read(_MOST_OUTPUT_BYTES).decode(errors="replace")
    status = os.waitstatus_to_exitcode(raw)
    memory = usage.ru_maxrss * 1024
    wrong = ""
    if seconds > allowed:
        wrong = "slow"
    elif memory > MEMORY_BYTES:
        wrong = "memory"
    elif "Traceback (most recent call last)" in output:
        wrong = "traceback"
    elif "a defect of gkestimator" in output:
        wrong = "defect"
    elif status not in (0, 1, 2, 3):
        wrong = f"status {status}"
    elif any(name.endswith(_TEMPORARY) for name in os.listdir(folder)):
        wrong = "leftover"
    lines = output.strip().splitlines()
    return Ending(case, status, wrong, seconds, memory, lines[-1][:300] if lines else "")


class Runner:
    """Run cases, ``jobs`` at a time, in temporary folders; folders of bad ones are kept under ``keep``."""

    def __init__(self, cache: Path, work: Path, keep: Path | None, jobs: int, seconds: float) -> None:
        self._cache = cache
        self._work = work
        self._keep = keep
        self._jobs = jobs
        self._seconds = seconds
        self._running: dict[int, tuple[Case, Path, float]] = {}

    def run(self, cases: list[Case], tally: Tally) -> None:
        """Run all ``cases`` and count their endings in ``tally``."""
        left = list(reversed(cases))
        while left or self._running:
            while left and len(self._running) < self._jobs:
                case = left.pop()
                folder = self._work / str(case).replace(":", "-")
                folder.mkdir()
                self._running[begin(case, self._cache, folder)] = (case, folder, time.monotonic())
            self._collect(tally)

    def _collect(self, tally: Tally) -> None:
        pid, raw, usage = os.wait4(-1, os.WNOHANG)
        now = time.monotonic()
        if not pid:
            for each, (_, _, began) in self._running.items():
                if now - began > self._seconds + 1:
                    os.killpg(each, signal.SIGKILL)
            time.sleep(0.002)
            return
        if pid not in self._running:
            return
        case, folder, began = self._running.pop(pid)
        ending = _judge(case, folder, raw, usage, now - began, self._seconds)
        tally.add(ending)
        if ending.wrong and self._keep is not None:
            shutil.move(folder, self._keep / folder.name)
        shutil.rmtree(folder, ignore_errors=True)
        if ending.wrong:
            print(
                f"{case}  {ending.wrong}  {ending.seconds:.1f} s  {ending.memory >> 20} MiB  {ending.last_line}",
                flush=True,
            )
        folder.with_suffix(".log").unlink(missing_ok=True)


def _shared_out(cases: int, names: list[str]) -> dict[str, int]:
    whole = sum(SHARES[name] for name in names)
    return {name: max(1, round(cases * SHARES[name] / whole)) for name in names}


def _page(tallies: dict[str, Tally], seed: int, minutes: float, allowed: float) -> str:
    head = f"| fuzzer | cases | exit 0 | 1 | 2 | 3 | tracebacks | defects | over 2 GB | over {allowed:g} s | other | slowest (s) | largest (MiB) |"
    lines = [head, "|" + "---|" * 13]
    for name, tally in tallies.items():
        bad = Counter(ending.wrong for ending in tally.bad)
        kinds = [bad.pop(kind, 0) for kind in ("traceback", "defect", "memory", "slow")]
        figures = [
            sum(tally.statuses.values()),
            *(tally.statuses[s] for s in range(4)),
            *kinds,
            sum(bad.values()),
        ]
        shown = " | ".join(f"{figure:,}" for figure in figures)
        lines.append(f"| {name} | {shown} | {tally.slowest:.1f} | {tally.largest >> 20:,} |")
    whole = sum(sum(tally.statuses.values()) for tally in tallies.values())
    lines += ["", f"{whole:,} cases in {minutes:.0f} minutes, seed {seed}."]
    return "\n".join(lines)


def _again(text: str, cache: Path, work: Path) -> None:
    name, seed, number = text.split(":")
    case = Case(name, int(seed), int(number))
    target(name).prepare(cache)
    folder = work / "case"
    folder.mkdir()
    tally = Tally()
    os.waitpid(begin(case, cache, folder), 0)
    print(folder.with_suffix(".log").read_text(errors="replace"))
    print(f"its files lie in {folder}", tally.bad or "")


def main() -> int:
    """Run the fuzzers that the command line names; return 1 where a case was bad."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--only", default=",".join(SHARES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0, help="longest that a case may take")
    parser.add_argument("--keep", type=Path, help="folder for the files of bad cases")
    parser.add_argument("--case", help="NAME:SEED:NUMBER of one case to run again")
    parser.add_argument("--write", type=Path, help="page whose last section is replaced by the figures")
    options = parser.parse_args()
    if options.write is not None and not options.write.is_file():
        parser.error(
            f"--write {options.write}: found no such file, expected a page whose figures are replaced"
        )
    work = Path(tempfile.mkdtemp(prefix="gkest-fuzz-"))
    cache = work / "cache"
    cache.mkdir()
    if options.case:
        _again(options.case, cache, work)
        return 0
    if options.keep is not None:
        options.keep = options.keep.resolve()
        options.keep.mkdir(parents=True, exist_ok=True)
    names = options.only.split(",")
    tallies: dict[str, Tally] = {}
    began = time.monotonic()
    for name, count in _shared_out(options.cases, names).items():
        target(name).prepare(cache)
        tallies[name] = Tally()
        Runner(cache, work, options.keep, options.jobs, options.seconds).run(
            [Case(name, options.seed, i) for i in range(count)], tallies[name]
        )
    page = _page(tallies, options.seed, (time.monotonic() - began) / 60, options.seconds)
    print(page)
    if options.write is not None:
        before = options.write.read_text().partition("## Figures")[0]
        options.write.write_text(f"{before}## Figures\n\n{page}\n")
    shutil.rmtree(work)
    return int(any(tally.bad for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
