"""Simulations of random plans under random arrivals and options, lengths (Arlo) and exports of plans included."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _unchanged_calls import call, committed, digest, inside
from _unchanged_placements import OWN, PUBLISHED, Tables, draw, policies, save, schedule

__all__ = ["exports", "simulations"]

REQUESTS = 20_000
LONGEST_S, REPLANNED_S = 60.0, 12.0
# Exact and exhaustive policies are left to the placements.
PLANNERS = ("gkest", "usher", "gpulet", "nexus", "selftuning", "igniter", "exclusive")
ARRIVALS = (
    ("poisson",),
    ("constant",),
    ("mmpp",),
    ("mmpp", "--bursts", "4,0.1,0.5"),
    ("trace.csv", "--streams", "streams"),
    ("trace.csv", "--streams", "requests", "--trace-loop", "--trace-scaling", "time"),
    ("profile.csv",),
)
# Every option with its values; "" leaves it out.
CHOICES: Mapping[str, Sequence[str]] = {
    "--max-wait-ms": ("", "", "0", "3.5"),
    "--network": ("", "network.toml"),
    "--service": ("", "exponential", "interval"),
    "--interference": ("", "none", "igniter", "contention"),
    "--copy": ("", "serial", "overlap"),
    "--routing": ("", "least-load"),
    "--drop": ("", "late"),
    "--admission": ("", "expected", "none"),
    "--rate-scale": ("", "0.5", "1.3"),
    "--warmup-s": ("", "0.02"),
}
# Options that need columns which the published table lacks.
UNMEASURED = ("--copy", "--network", "--service")
LENGTHS = ("lengths/bert-base.yaml", "lengths/autoscaled.yaml")
TARGETS = (
    "csv",
    "json",
    "hami",
    "kai",
    "volcano",
    "device-plugin",
    "mig",
    "ray-serve",
    "triton",
    "kserve",
    "mps",
)


def simulations(tables: Tables, folder: Path, count: int) -> Iterator[tuple[str, str]]:
    """Yield the name and hash of ``count`` simulations, and of the shipped examples of lengths."""
    with inside(folder):
        Path("network.toml").write_bytes(committed("examples/network.toml").read_bytes())
        for number in range(count):
            rng = random.Random(f"simulation {number}")
            source = {name: tables[name] for name in (PUBLISHED if number % 5 == 0 else OWN,)}
            plan = _plan(source, f"simulated {number}", rng.choice(PLANNERS))
            arguments = _arguments(plan, rng, measured=PUBLISHED in source)
            answer = call(["simulate", "plan.json", "--table", "table.csv", *arguments, "--format", "json"])
            yield f"{number} {' '.join(arguments)}", digest(answer, Path("requests.csv"))
            Path("requests.csv").unlink(missing_ok=True)
        table = committed("lengths/bert-base.csv")
        for name in LENGTHS:
            spec = Path(Path(name).name)
            spec.write_text(_shortened(committed(name).read_text()))
            for seed in ("0", "1"):
                answer = call(["lengths", spec, "--table", table, "--seed", seed, "--format", "json"])
                yield f"{name} seed {seed}", digest(answer)


def exports(tables: Tables, folder: Path, count: int) -> Iterator[tuple[str, str]]:
    """Yield the name and hash of the files for every target, of ``count`` plans of every policy."""
    with inside(folder):
        for policy in policies():
            for number in range(count):
                _plan(tables, f"exported {number}", policy)
                for target in TARGETS:
                    out = Path(f"out-{policy}-{number}-{target}")
                    answer = call(["export", "plan.json", "--to", target, "-o", out])
                    files = sorted(p for p in out.rglob("*") if p.is_file())
                    yield f"{policy} {number} {target}", digest(answer, *files)


def _plan(tables: Tables, seed: str, policy: str) -> dict[str, Any]:
    """Write plan.json with its table, workload and cluster; return the plan."""
    drawn = draw(tables, seed, models=3, gpus=2, policy=policy)
    answer = schedule(drawn, policy)
    if answer.status == 2:
        raise SystemExit(f"{seed}: {policy} refused: {answer.errors}")
    save(drawn)
    Path("plan.json").write_bytes(answer.output)
    plan: dict[str, Any] = json.loads(answer.output)
    return plan


def _arguments(plan: Mapping[str, Any], rng: random.Random, *, measured: bool) -> list[str]:
    """Return random options for the simulation of ``plan``; write the trace and the profile that they may name.

    A ``measured`` table says nothing of copies and bytes, so that options which need them are left out.
    """
    rates = _rates(plan)
    replanned = rng.random() < 0.25
    duration = min(LONGEST_S, REQUESTS / sum(rates.values()))
    if replanned:
        duration = min(REPLANNED_S, duration)
    _write_arrivals(rates, duration, rng)
    arguments = ["--arrivals", *rng.choice(ARRIVALS), "--duration-s", repr(duration)]
    arguments += ["--seed", str(rng.randrange(1000))]
    for option, values in CHOICES.items():
        value = rng.choice(values)
        if value and not (measured and option in UNMEASURED):
            arguments += [option, value]
    if replanned:
        arguments += _replanning(duration, rng)
    elif rng.random() < 0.5:
        arguments += ["--requests", "requests.csv"]
    return arguments


def _replanning(duration: float, rng: random.Random) -> list[str]:
    """Return options by which the policy runs again several times within ``duration`` seconds."""
    step = str(max(1, int(duration * 1e3 / 6)))
    common = ["--cluster", "cluster.yaml", "--replan-option", f"control-ms={step}"]
    common += ["--replan-option", "headroom=1.2"]
    if rng.random() < 0.5:
        return [
            "--replan",
            "usher",
            *common,
            "--replan-option",
            "threshold-rps=1",
            "--replan-option",
            "load-ms=5",
        ]
    return ["--replan", "gpulet", *common, "--replan-option", f"period-ms={step}"]


def _rates(plan: Mapping[str, Any]) -> dict[str, float]:
    """Return the requests a second of each source of the plan's workload."""
    workload = plan["workload"]
    sources = [*workload.get("models", []), *workload.get("applications", [])]
    return {source["name"]: source["rate_rps"] for source in sources}


def _write_arrivals(rates: Mapping[str, float], duration: float, rng: random.Random) -> None:
    times = sorted(rng.uniform(0, 1.5 * duration) for _ in range(3000))
    lines = [f"{t!r},{rng.choice(('a', 'b', 'c', 'd'))}" for t in times]
    Path("trace.csv").write_text("\n".join(["time_s,model", *lines, ""]))
    steps = [0.0, duration / 3, duration / 2]
    rows = [(t, name, rate * rng.uniform(0.2, 2.0)) for t in steps for name, rate in rates.items()]
    Path("profile.csv").write_text(
        "\n".join(["time_s,model,rate_rps", *(f"{t!r},{n},{r!r}" for t, n, r in rows), ""])
    )


def _shortened(text: str) -> str:
    """Return the specification ``text`` with 20 seconds of arrivals in place of minutes."""
    lines = [line for line in text.splitlines() if not line.startswith("duration_s")]
    return "\n".join([*lines, "duration_s: 20", ""])
