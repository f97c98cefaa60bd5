"""Pages on scheduling, word by word: their commands are run as they stand and every file that they write is validated."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from golden_models import encoder
from serving import with_weights

from gkestimator.documents import read_plan
from gkestimator.exporting.registry import EXPORTERS, exporter_class
from gkestimator.onnx_io.demo import write_resnet50
from gkestimator.onnx_io.demo_models import write_mobilenet_v2
from gkestimator.placement.registry import POLICIES, policy_class

for library in ("matplotlib", "jsonschema", "kubernetes_validate"):
    pytest.importorskip(library)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("how-to/scheduling", "how-to/scheduling/policies", "how-to/scheduling/exporting", "reference/plan")
PAGE = "".join((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in PAGES)
EXAMPLES = ROOT / "examples" / "scheduling"
MODELS = ("bert", "mobilenet_v2", "resnet50")
SHARED = os.environ.get("GKEST_SHARED")
no_shared = pytest.mark.skipif(SHARED is None, reason="needs the public graphs of GKEST_SHARED")


def block(name: str) -> list[str]:
    found = re.search(rf"<!-- {name}: begin -->\n```sh\n(.*?)```\n<!-- {name}: end -->", PAGE, re.DOTALL)
    assert found is not None, name
    return found[1].strip().splitlines()


def example(mark: str) -> str:
    found = re.search(rf"<!-- {re.escape(mark)} -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, mark
    return found[1]


def test_every_option_of_a_policy_is_described_with_its_default() -> None:
    table = re.search(r"<!-- options: begin -->\n(.*?)<!-- options: end -->", PAGE, re.DOTALL)
    assert table is not None
    described = {}
    for line in table[1].strip().splitlines()[2:]:
        policies, options, default, _ = (cell.strip() for cell in line.strip("|").split("|"))
        for policy in re.findall(r"`([\w-]+)`", policies):
            described |= {(policy, option): default.strip("`") for option in re.findall(r"`(\w+)`", options)}
    taken = {}
    for policy in POLICIES:
        known = inspect.signature(policy_class(policy)).parameters
        for option in policy_class(policy).options:
            default = known[option].default
            shown = str(default).lower() if isinstance(default, bool) else default
            taken[policy, option] = (
                "-" if default is None else f"{shown:g}" if isinstance(shown, float) else shown
            )
    assert described == taken


def shims(folder: Path) -> dict[str, str]:
    """An environment in which `gkest` and `serve` are those of this interpreter."""
    home = folder / "bin"
    home.mkdir(parents=True)
    for name, code in (
        ("gkest", "from gkestimator.cli import main; main()"),
        ("serve", "from ray.serve.scripts import cli; cli()"),
    ):
        shim = home / name
        shim.write_text(f"#!/bin/sh\nexec {sys.executable} -P -c '{code}' \"$@\"\n")
        shim.chmod(0o755)
    path = os.pathsep.join([str(home), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "GKEST_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}


def run(command: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


def generated(folder: Path) -> None:
    """Real networks of the names that the page uses, from the repository alone: ResNet-50, MobileNetV2, four blocks of BERT."""
    write_resnet50(folder)
    write_mobilenet_v2(folder)
    encoder(folder).rename(folder / "bert.onnx")


def shared(folder: Path) -> None:
    assert SHARED is not None
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        shutil.copy(Path(SHARED, "models", "ethz", f"{name}.onnx"), folder)


@pytest.fixture(
    scope="module",
    params=["generated", pytest.param("shared", marks=[pytest.mark.shared, no_shared])],
)
def walked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the page's commands were run."""
    folder = tmp_path_factory.mktemp("walk")
    work = folder / "work"
    {"generated": generated, "shared": shared}[request.param](work / "models")
    for file in EXAMPLES.glob("*.yaml"):
        shutil.copy(file, work)
    env = shims(folder)
    for command in block("walk-through"):
        run(command, work, env)
    return work


def test_the_page_shows_the_files_of_the_examples() -> None:
    for name in ("workload.yaml", "cluster.yaml", "rented.yaml"):
        assert example(f"file: {name}") == (EXAMPLES / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_plan_serves_the_workload(walked: Path) -> None:
    plan = read_plan(walked / "plan.json")
    assert plan.policy == "gkest" and not plan.unserved
    assert {r.model for g in plan.gpus for r in g.replicas} == set(MODELS)
    assert {g.type for g in plan.gpus} == {"V100-SXM2-16GB"} and len(plan.gpus) <= 2
    assert (walked / "packing.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_rented_plan_serves_the_workload_for_money(walked: Path) -> None:
    plan = read_plan(walked / "rented.json")
    prices = {
        e["type"]: e["price_per_hour"]
        for e in yaml.safe_load((walked / "rented.yaml").read_text())["elastic"]
    }
    assert plan.objective == "cost" and not plan.unserved
    assert plan.totals.cost_per_hour == pytest.approx(sum(prices[g.type] for g in plan.gpus))


def replicas(folder: Path) -> Counter[str]:
    return Counter(r.model for g in read_plan(folder / "plan.json").gpus for r in g.replicas)


@pytest.mark.slow
def test_hami_holds_every_replica(walked: Path) -> None:
    from test_kubernetes_forms import check_kubernetes

    found: Counter[str] = Counter()
    for file in sorted((walked / "deploy" / "hami").rglob("*.yaml")):
        for thing in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            check_kubernetes(thing, "hami")
            found[thing["metadata"]["annotations"]["gkestimator/model"]] += thing["spec"]["replicas"]
    assert found == replicas(walked)


@pytest.mark.slow
def test_ray_serve_holds_every_replica(walked: Path) -> None:
    pytest.importorskip("ray.serve", reason="needs ray[serve] (extra ray)")
    from test_ray_serve import check

    document = yaml.safe_load(
        (walked / "deploy" / "ray-serve" / "serve-config.yaml").read_text(encoding="utf-8")
    )
    check(document)
    found: Counter[str] = Counter()
    for application in document["applications"]:
        for way in application["deployments"]:
            if "user_config" in way:
                found[way["user_config"]["model_file"].removesuffix(".onnx")] += way["num_replicas"]
    assert found == replicas(walked)


@pytest.mark.slow
def test_triton_holds_every_replica(walked: Path) -> None:
    pb = pytest.importorskip(
        "tritonclient.grpc.model_config_pb2", reason="needs tritonclient[grpc] (extra test)"
    )
    text_format = pytest.importorskip("google.protobuf.text_format")
    found: Counter[str] = Counter()
    for file in sorted((walked / "deploy" / "triton").rglob("config.pbtxt")):
        config = text_format.Parse(file.read_text(encoding="utf-8"), pb.ModelConfig())
        assert config.name == file.parent.name
        model = next(m for m in MODELS if config.name in (m, f"{m}_b{config.max_batch_size}"))
        found[model] += sum(g.count * len(g.gpus) for g in config.instance_group)
        graph = onnx.load(walked / "models" / f"{model}.onnx", load_external_data=False).graph
        assert [i.name for i in config.input] == [i.name for i in graph.input]
        # Hidden states with the time first, and outputs of no declared shape, are not listed.
        assert {o.name for o in config.output} <= {o.name for o in graph.output}
        assert bool(config.output) is graph.output[0].type.tensor_type.HasField("shape")
        assert config.max_batch_size >= 1
    assert found == replicas(walked)
    words = [
        line.partition(":")[0]
        for line in (walked / "deploy" / "triton" / "triton-arguments.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert set(words) == {
        "--rate-limit=execution_count",
        "--rate-limit-resource=creq_pct_x100",
        "--rate-limit-resource=mreq_mib",
    }


@pytest.mark.slow
def test_the_application_of_the_page_is_scheduled(walked: Path) -> None:
    (walked / "application.yaml").write_text(example("example: application"), encoding="utf-8")
    env = os.environ | {"GKEST_HOME": str(walked / "home")}
    code = "from gkestimator.cli import main; main()"
    arguments = [
        "--workload",
        "application.yaml",
        "--cluster",
        "cluster.yaml",
        "--format",
        "json",
        "-o",
        "application.json",
    ]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "schedule", "table.csv", *arguments],
        cwd=walked, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = read_plan(walked / "application.json")
    parts = {r.model: r.slo_ms for g in plan.gpus for r in g.replicas}
    assert set(parts) == set(MODELS) and sum(s for s in parts.values() if s) == pytest.approx(500)
    served = Counter[str]()
    for gpu in plan.gpus:
        for r in gpu.replicas:
            served[r.model] += r.goodput_rps  # type: ignore[assignment]
    assert {m: round(v) for m, v in served.items()} == {"mobilenet_v2": 50, "resnet50": 150, "bert": 150}


@pytest.mark.slow
def test_the_published_case_says_what_the_page_says(tmp_path: Path) -> None:
    env = shims(tmp_path)
    for command in block("published"):
        policy = command.rpartition(" ")[2]
        printed = re.search(r"goodput ([0-9,.]+) req/s", run(command, ROOT, env).stdout)
        assert printed is not None
        assert f"{printed[1]} req/s with `{policy}`" in PAGE


def rows(header: str) -> list[list[str]]:
    table = PAGE[PAGE.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_page_names_every_policy_as_it_is() -> None:
    said = {row[0].strip("`"): row[2:] for row in rows("| policy | what it does |")}
    words = {"creq": "Creq", "memory": "memory"}
    found = {}
    for name in POLICIES:
        policy = policy_class(name)
        within = "yes" if policy.packs_by_creq else "no"
        found[name] = [f"`{policy.creq}`", within, ", ".join(words.get(n, f"`{n}`") for n in policy.needs)]
        assert policy.objectives == ("goodput", "cost"), name
    assert said == found


def test_the_page_names_every_target() -> None:
    named = [
        name for row in rows("| target | what is written |") for name in re.findall(r"`([a-z-]+)`", row[0])
    ]
    assert sorted(named) == sorted(EXPORTERS)
    assert all(exporter_class(name).limits for name in EXPORTERS)


def test_the_page_names_every_field_of_a_plan(walked: Path) -> None:
    plan = json.loads((walked / "plan.json").read_text())
    gpu = plan["gpus"][0]
    page = (DOCS / "reference/plan.md").read_text(encoding="utf-8")
    for field in {*plan, *plan["totals"], *gpu, *gpu["replicas"][0], "rate_rps", "reason"} - {
        "schema_version"
    }:
        assert re.search(rf"[`.]{field}(\[\])?[`.]", page), field


# --- Ray Serve, as the page starts it -----------------------------------------------------------------------------


@contextlib.contextmanager
def started(
    commands: list[str], folder: Path, env: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """``commands`` in a shell and process group of their own, all of which is ended on leaving."""
    with open(log, "wb") as output:
        child = subprocess.Popen(
            ["bash", "-c", "set -e\n" + "\n".join(commands)],
            cwd=folder,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGINT)  # serve run shuts down by itself
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def ask(url: str, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The outputs, None where nobody answers yet."""
    body = json.dumps({"inputs": inputs}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)["outputs"]
            return found
    except urllib.error.HTTPError as e:
        assert e.code in (404, 408, 503), e.read()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        pass
    return None


@pytest.mark.slow
@pytest.mark.shared
@no_shared
def test_ray_serve_starts_the_shared_models_as_the_page_says(tmp_path: Path) -> None:
    """Real deployments of the public graphs, with drawn weights (they come without), against onnxruntime."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("ray.serve", reason="needs ray[serve] (extra ray)")
    with socket.socket() as s:
        if s.connect_ex(("127.0.0.1", 8000)) == 0:
            pytest.skip("port 8000, Ray Serve's own, is taken on this machine")
    work = tmp_path / "work"
    shared(work / "models")
    for file in EXAMPLES.glob("*.yaml"):
        shutil.copy(file, work)
    env = shims(tmp_path)
    for command in block("walk-through"):
        run(command, work, env)
    for name in MODELS:
        with_weights(work / "models" / f"{name}.onnx")
    env |= {
        "HOME": str(tmp_path),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": "/tmp",
    }
    env.pop("RAY_ADDRESS", None)
    draw = np.random.default_rng(2)
    with started(block("serve"), work, env, tmp_path / "serve.log") as child:
        for name in MODELS:
            session = onnxruntime.InferenceSession(work / "models" / f"{name}.onnx")
            (given,) = session.get_inputs()
            shape = [1, *given.shape[1:]]
            integer = "int" in given.type
            sample = (
                draw.integers(0, 1000, shape) if integer else draw.standard_normal(shape).astype(np.float32)
            )
            end, answer = time.monotonic() + 240, None
            while answer is None:
                said = (tmp_path / "serve.log").read_text()
                running = child.poll() is None and time.monotonic() < end
                assert running and "failed with exception" not in said, said[-4000:]
                answer = ask(f"http://127.0.0.1:8000/{name}", {given.name: sample[0].tolist()})
                time.sleep(0.5)
            output = session.get_outputs()[0].name
            expected = session.run([output], {given.name: sample})[0][0]
            assert np.isfinite(expected).all() and np.ptp(expected) > 0
            np.testing.assert_allclose(
                answer[output], expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max()
            )
