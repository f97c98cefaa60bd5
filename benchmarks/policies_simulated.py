"""Serve every placement policy's plans in simulation for docs/appendix/policies-simulated.md.

Poisson arrivals and both Azure LLM hours, several loads and objectives.

    python benchmarks/policies_simulated.py [--out FOLDER] [--processes 1] [--seconds 600] [--report docs/appendix/policies-simulated.md]

Writes the specs and tables into FOLDER, runs ``gkest compare`` on each (what FOLDER holds already is kept) and writes the page with its
pictures beside it. Needs GKEST_SHARED for the two traces of Azure (data/traces/).

- ``a1``: table A.1 of the thesis (V100, measured), its 13 models. Requests are dealt to the models in turn as in USHER, so each has the
  same rate: 200 req/s at load 1, which would fill 78 % of 24 V100 at every model's best batch. SLO 200 ms (vision), 400 ms (language).
- ``own``: our estimates (torch, fp32) of eight golden networks on 24 GPUs of four types; 500 req/s each at load 1; SLO 100 ms, the decoder's
  200 ms.
- Clusters: 24 GPUs (``fixed24``, objective goodput) and as many as a policy rents at list prices (``rented``, objective cost).
- Arrivals: Poisson, and of each hour the seconds from 600 on (conversation: steady; code: bursty), every recorded request standing for as
  many as the load asks (``scaling: copies``: bursts keep their length and their height over the mean).
- ``slo``: objectives times 0.4 to 1.4 at load 0.75, without the bursty hour. ``undropped``: as ``a1`` on 24 GPUs, where nothing is dropped.
  ``interval``: as ``own`` on rented GPUs under Poisson arrivals, where a model is slower or faster than estimated, by its estimate's interval
  (``--service interval``; mean of ten seeds of 60 s).
- Requests that cannot be answered on time any more when their batch is about to be served are dropped (``drop: late``), whoever placed, as Nexus'
  servers and others do; else one burst leaves a queue in which every later request is late. They count as not on time.
- Policies: all nine by their defaults (gpulet-ideal searches exhaustively and refuses so many models; in ``own``, where it takes a minute to say
  so, it is left out), and gkest planning for bursts of four times the mean (``burst=4``). Rates, loads, stretches,
  objectives and that 4 were set before the first run. The router sends a batch where least is outstanding (``routing: least-load``): set after a
  first run, in which the round robin of that day dealt unlike replicas wrongly (mended since).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from _placement_tables import own_estimates
from _shared import shared_dir

from gkestimator.cli import run
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.simulation.comparing.panels import Panel, panels_of
from gkestimator.simulation.comparing.report import panel_table
from gkestimator.simulation.comparing.results import Row, rows_from
from gkestimator.tables import REQUIREMENTS, write_table

ROOT = Path(__file__).parents[1]
LOADS = (0.25, 0.5, 0.75, 1.0, 1.25)
SLOS = (0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
START_S = 600
POLICIES: list[object] = [
    "gkest",
    {"name": "gkest", "label": "gkest-burst4", "options": {"burst": 4}},
    *("usher", "milp", "gpulet", "nexus", "selftuning", "igniter", "exclusive", "gpulet-ideal"),
]
VISION = [
    "alexnet",
    "densenet121",
    "efficientnet_b7",
    "inception_v3",
    "mobilenet_v2",
    "resnet50",
    "resnext50_32x4d",
    "vgg19",
]
LANGUAGE = ["bert", "bloom_560", "gpt2", "t5", "xlnet"]
OWN = [
    "convnext_stage3",
    "decoder_s512",
    "encoder_s128",
    "light_densenet121",
    "light_inception_v2",
    "light_vgg19",
    "resnet50",
    "unet_128",
]
OWN_GPUS = {"T4": 12, "L4": 6, "V100-SXM2-16GB": 4, "A100-SXM4-80GB": 2}
OWN_RENTED = ("T4", "L4", "V100-SXM2-16GB", "A100-SXM4-80GB", "H100-SXM")
INTRO = """Tables and pictures; what they say in words: [which policy serves best](../explanation/policies-compared.md). The setting:"""


def specs(traces: Path, seconds: int, start_s: int = START_S) -> dict[str, dict[str, object]]:
    """The comparisons by name."""
    slo = {**dict.fromkeys(VISION, 200), **dict.fromkeys(LANGUAGE, 400)}
    a1 = [{"label": "a1", "models": [{"name": n, "rate_rps": 200, "slo_ms": slo[n]} for n in slo]}]
    own = [
        {
            "label": "own",
            "models": [
                {"name": n, "rate_rps": 500, "slo_ms": 200 if n == "decoder_s512" else 100} for n in OWN
            ],
        }
    ]
    v100 = {"label": "fixed24", "gpus": [{"type": "V100-SXM2-16GB", "count": 24}]}
    common: dict[str, object] = {
        "policies": POLICIES,
        "arrivals": [
            "poisson",
            *(
                {
                    "label": label,
                    "trace": str(traces / f"AzureLLMInferenceTrace_2023_{name}.csv"),
                    "format": "azure-llm",
                    "start_s": start_s,
                    "duration_s": seconds,
                    "assign": "requests",
                    "scaling": "copies",
                }
                for label, name in (("azure-conversation", "conv"), ("azure-code", "code"))
            ),
        ],
        "duration_s": seconds,
        "warmup_s": 30,
        "drop": "late",
        "routing": "least-load",
    }
    thesis = common | {"tables": ["a1.csv"], "workloads": a1}
    return {
        "a1": thesis | {"clusters": [v100, _rented(["V100-SXM2-16GB"])], "rate_scale": LOADS},
        "own": common
        | {
            "tables": ["own.csv"],
            "workloads": own,
            "clusters": [
                {"label": "fixed24", "gpus": [{"type": t, "count": n} for t, n in OWN_GPUS.items()]},
                _rented(OWN_RENTED),
            ],
            "rate_scale": LOADS[:-1],
            "policies": [p for p in POLICIES if p != "gpulet-ideal"],
        },
        "slo": thesis
        | {
            "clusters": [v100],
            "rate_scale": [0.75],
            "slo_scale": SLOS,
            "arrivals": thesis["arrivals"][:2],  # type: ignore[index]
        },
        "undropped": thesis | {"clusters": [v100], "rate_scale": LOADS, "drop": "none"},
        "interval": common
        | {
            "tables": ["own.csv"],
            "workloads": own,
            "clusters": [_rented(OWN_RENTED)],
            "policies": [p for p in POLICIES if isinstance(p, str) and p != "gpulet-ideal"],
            "arrivals": ["poisson"],
            "rate_scale": LOADS[:2],
            "service": "interval",
            "seeds": list(range(10)),
            "duration_s": min(60, seconds),
            "warmup_s": 5,
        },
    }


def _rented(types: Sequence[str]) -> dict[str, object]:
    catalogue = gpu_catalogue()
    return {
        "label": "rented",
        "elastic": [{"type": t, "price_per_hour": catalogue.spec(t).price_per_hour_usd} for t in types],
    }


TITLES = {
    "a1": "Table A.1 (V100, measured), 13 models",
    "own": "Our estimates, eight networks on several types of GPU",
    "slo": "Table A.1, 24 V100, load 0.75: objectives from 0.4 to 1.4",
    "undropped": "Table A.1, 24 V100, late requests served too",
    "interval": "Our estimates, rented GPUs, where estimates err as their intervals say",
}


def page(out: Path, names: Sequence[str], command: str, pictures: Path) -> str:
    """The report; copies the pictures."""
    parts = ["# Placement policies served in simulation: tables", f"`{command}`", INTRO, _docstring()]
    for name in names:
        rows = rows_from(json.loads((out / name / "results.json").read_text()))
        parts.append(f"## {TITLES[name]}")
        # Two loads are a table, not a picture.
        for picture in sorted((out / name).glob("*.svg")) if name != "interval" else ():
            shutil.copy(picture, pictures / f"{name}-{picture.name}")
            parts.append(f"![{picture.stem}]({pictures.name}/{name}-{picture.name})")
        # Whether late requests are served changes no plan: GPUs used are those of a1.
        panels = _panels(rows, plans=name != "undropped")
        parts += [f"{_caption(p)}\n\n{chr(10).join(panel_table(p))}" for p in panels]
        reasons = dict.fromkeys((r.policy, r.status, r.reason) for r in rows if r.status != "ok")
        parts += [f"`{policy}` {status}: {reason}" for policy, status, reason in reasons]
    return "\n\n".join(parts) + "\n"


def _panels(rows: Sequence[Row], *, plans: bool) -> list[Panel]:
    """Return requests on time for each kind of arrivals, and with ``plans`` what the plans cost or use."""
    found: list[Panel] = []
    for cluster in dict.fromkeys(r.cluster for r in rows):
        alone = ["cost_per_hour" if cluster == "rented" else "gpus_used"] if plans else []
        found += panels_of([r for r in rows if r.cluster == cluster], ["on_time_pct", *alone])
    return found


def _caption(panel: Panel) -> str:
    where = f"`{panel.where['cluster']}`"
    if "arrivals" in panel.where:
        where += f", arrivals `{panel.where['arrivals']}`"
    return f"**{panel.measure.title}**, {where}, by {'load' if panel.x == 'rate_scale' else 'SLO'}:"


def _docstring() -> str:
    """The setting, as it is said above."""
    return (__doc__ or "").partition("(data/traces/).\n\n")[2].strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "gkest-policies-simulated")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--only", default="a1,own,slo,undropped,interval")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    traces = shared_dir() / "data" / "traces"
    given.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(
        Path(str(files("gkestimator.datasets"))) / "published" / "ethz_v100.csv", given.out / "a1.csv"
    )
    write_table(REQUIREMENTS, [r for r in own_estimates() if r.model in OWN], given.out / "own.csv")
    begun = time.monotonic()
    wanted = {n: s for n, s in specs(traces, given.seconds).items() if n in given.only.split(",")}
    for name, spec in wanted.items():
        (given.out / f"{name}.yaml").write_text(json.dumps(spec, indent=1))
        arguments = [str(given.out / f"{name}.yaml"), "-o", str(given.out / name)]
        if run(["compare", *arguments, "--processes", str(given.processes)]) == 2:
            sys.exit(2)
        print(f"{name}: {(time.monotonic() - begun) / 60:.1f} minutes so far", file=sys.stderr)
    if given.report:
        pictures = given.report.with_suffix("")
        pictures.mkdir(exist_ok=True)
        command = f"python benchmarks/policies_simulated.py --seconds {given.seconds}"
        given.report.write_text(page(given.out, list(wanted), command, pictures))


if __name__ == "__main__":
    main()
