"""Ray Serve: one configuration for `serve run` or `serve deploy`, and the application that it names.

Form: ray.serve.schema.ServeDeploySchema of Ray 2.60. A model is one application; what runs it at one batch
size on one GPU type is one deployment."""

from __future__ import annotations

import bisect
import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.resources import files as resources
from pathlib import PurePosixPath

from gkestimator.core.errors import UsageError, one_line
from gkestimator.core.records import NamedNumbers, NamedValues, Names
from gkestimator.exporting.deployment import Deployment, Exporter, ExportFile, Instance
from gkestimator.exporting.engines import batch_shapes
from gkestimator.exporting.ray_serve_limits import ReplicaLimits, replica_limits
from gkestimator.exporting.rounding import (
    compute_pct,
    memory_bytes,
    memory_pct,
    no_turns,
    refuse_other_batch,
    up,
)
from gkestimator.exporting.variants import Variant, plain_name, variants
from gkestimator.hardware.runtimes import served_as
from gkestimator.onnx_io.reading.signature import read_signature

CONFIG = "serve-config.yaml"
APPLICATION = "gkest_serve_app"
WORKER = "gkest_serve_worker"  # the name that the application imports it by
_TARGET = "ray-serve"
_PROXY_S = 1.0
_STEPS = 10_000  # Ray counts GPUs in ten-thousandths
# What Ray calls a node's GPU (ray.util.accelerators), by the head of our names: neither board nor memory size.
ACCELERATORS: Mapping[str, str] = {
    name: name
    for name in (
        *("V100", "P100", "T4", "P4", "K80", "A10G", "L4", "L40S"),
        *("A100", "H100", "H200", "B200", "RTX-PRO-6000"),
    )
}
_HEADER = (
    f"Ray Serve configuration, written by gkest export. In this folder: PYTHONPATH=$PWD serve run {CONFIG}",
    f"On a cluster, {APPLICATION}.py and {WORKER}.py must be importable on every node (in its image, or by "
    "runtime_env).",
    "ONNX files are looked for below $GKEST_MODELS on each node, else below models/ beside the application.",
    "num_gpus is the larger of Creq and Mreq, rounded up to four decimals.",
    "max_waiting: what a replica can answer within the objective. max_ongoing_requests: ten times as much and more, so "
    "that the worker refuses at once what Ray's router would let sleep. A limit of two batches lets replicas run dry.",
)
# What a reader must know where several replicas share a GPU on Kubernetes.
_KUBERAY = (
    "KubeRay: this file is the serveConfigV2 of a RayService as it stands, but a part of a GPU is no resource of a "
    "Pod: Kubernetes refuses nvidia.com/gpu: 0.5 as a limit. Give each worker group whole GPUs (nvidia.com/gpu: 1, and "
    "num-gpus of rayStartParams left away or the same number), as many as are named above; Ray divides them among "
    "the replicas. To divide a GPU between Pods, export the plan to hami, mig or dra instead"
)
_DIM = re.compile(r"([^,=]+)=([0-9]{1,9})")


class RayServeExporter(Exporter):
    """``serve-config.yaml``, ``gkest_serve_app.py`` and ``gkest_serve_worker.py``."""

    name = _TARGET
    summary = "Ray Serve configuration (serve run, serve deploy) with an application that batches ONNX models"
    batching = "late"
    limits = (
        "Ray Serve enforces neither Creq nor Mreq: num_gpus is logical, it decides where replicas start and "
        "confines none; Ray chooses the GPU of each replica itself. The largest batch is kept by the "
        "application, as is memory_bytes, for the arena of ONNX Runtime alone. "
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE confines only where the node runs the MPS daemon."
    )

    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return the configuration, the application and its worker.

        Raises UsageError: a null or more than 100 % in Creq or Mreq, replicas that take turns, GPU types that
        Ray cannot tell apart, an ONNX file (where given) that cannot be batched.
        """
        import yaml

        accelerators = _accelerators(deployment)
        no_turns(deployment.instances, _TARGET)
        every = variants(deployment.instances)
        by_model: dict[str, list[Variant]] = defaultdict(list)
        for variant in every:
            by_model[variant.model].append(variant)
        deployments = {v.name.lower() for v in every}
        names: set[str] = set()
        applications = []
        for model, ways in by_model.items():
            if model in deployment.models:
                _check_file(model, deployment.models[model], ways)
            file = deployment.models.get(model)
            name = plain_name(model, names)
            applications.append(_application(name, ways, file, accelerators, deployments))
        # What the proxies allow is one number for all: the longest that a replica allows, and its way there and back.
        timeout_s = max(replica_limits(v).timeout_s for v in every) + _PROXY_S
        document = {"http_options": {"request_timeout_s": timeout_s}, "applications": applications}
        text = yaml.safe_dump(document, sort_keys=False, width=110)
        comments = [*_HEADER, self.limits, *_remarks(deployment, every), *deployment.notes]
        if any(_fraction(v) < 1 for v in every):
            comments.append(_KUBERAY)
        header = "".join(f"# {one_line(comment, limit=2000)}\n" for comment in comments)
        return (
            ExportFile(path=PurePosixPath(CONFIG), text=header + text),
            _source(f"{APPLICATION}.py", "app.py"),
            _source(f"{WORKER}.py", "worker.py"),
        )

    def messages(self, deployment: Deployment) -> Names:
        """Return where Ray would need more GPUs than the plan, and what is not known."""
        return _remarks(deployment, variants(deployment.instances))


def _source(name: str, module: str) -> ExportFile:
    """Return a module of ``ray_app``, as it stands, to be written as ``name``."""
    text = resources("gkestimator.exporting.ray_app").joinpath(module).read_text(encoding="utf-8")
    return ExportFile(path=PurePosixPath(name), text=text)


def gpu_fraction(instance: Instance) -> float:
    """Return ``num_gpus`` of one replica: the larger of Creq and Mreq as a part of a GPU, rounded up to Ray's
    four decimals; at least one such step (a replica with 0 sees no GPU). Raises UsageError where one is
    unknown or more than a GPU."""
    percent = max(compute_pct(instance, _TARGET), memory_pct(instance, _TARGET))
    return min(up(percent * _STEPS / 100), _STEPS) / _STEPS


def _fraction(way: Variant) -> float:
    return max(gpu_fraction(i) for i in way.instances)


def _accelerators(deployment: Deployment) -> dict[str, str | None]:
    """Return what Ray calls each GPU type; None where it has no name for it. Raises UsageError where it
    cannot tell two types of the deployment apart."""
    names: dict[str, str | None] = {}
    for gpu in dict.fromkeys(i.gpu_type for i in deployment.instances):
        name = next((r for ours, r in ACCELERATORS.items() if f"{gpu}-".startswith(f"{ours}-")), None)
        for other, taken in names.items():
            if name is None or taken is None or name == taken:
                what = (
                    f"both are {name}"
                    if name == taken and name
                    else "it has no accelerator type for one of them"
                )
                raise UsageError(
                    f"{_TARGET}: Ray cannot tell {gpu} from {other} ({what}); export a plan for each"
                )
        names[gpu] = name
    return names


def _check_file(model: str, path: str, ways: Sequence[Variant]) -> None:
    """Refuse a file that the application could not run at the batch sizes of ``ways``."""
    signature = read_signature(path)
    for way in ways:
        refuse_other_batch(way.first, signature.fixed_batch, _TARGET)
    for tensor in signature.inputs:
        batches = (*signature.batch_dims, signature.fixed_batch)
        if tensor.shape is not None and (not tensor.shape or tensor.shape[0] not in batches):
            raise UsageError(f"{_TARGET}: {model}: input {tensor.name!r} does not begin with the batch")


def _application(
    name: str,
    ways: Sequence[Variant],
    file: str | None,
    accelerators: Mapping[str, str | None],
    taken: set[str],
) -> NamedValues:
    deployments = [_deployment(way, file, accelerators[way.first.gpu_type]) for way in ways]
    arguments: NamedValues = {"deployments": _weights(ways)}
    if len(ways) > 1:
        arguments["router"] = plain_name(f"{name}_router", taken)
        ongoing = sum(d["num_replicas"] * d["max_ongoing_requests"] for d in deployments)
        deployments.append(
            {
                "name": arguments["router"],
                "num_replicas": 1,
                "max_ongoing_requests": ongoing,
                "max_queued_requests": sum(d["max_queued_requests"] for d in deployments),
                "ray_actor_options": {"num_gpus": 0.0},
            }
        )
    return {
        "name": name,
        "route_prefix": f"/{name}",
        "import_path": f"{APPLICATION}:build",
        "args": arguments,
        "deployments": deployments,
    }


def _weights(ways: Sequence[Variant]) -> NamedNumbers:
    """Return the part of the requests of each way: what the plan assigns to it; its replicas where nothing is
    assigned."""
    assigned = {way.name: way.goodput_rps for way in ways}
    known = {name: rate for name, rate in assigned.items() if rate is not None}
    if len(known) == len(assigned) and any(known.values()):
        return known
    return {way.name: float(len(way.instances)) for way in ways}


def _deployment(way: Variant, file: str | None, accelerator: str | None) -> NamedValues:
    limits = replica_limits(way)
    options: NamedValues = {"num_gpus": _fraction(way)}
    if accelerator is not None:
        options["accelerator_type"] = accelerator
    if way.first.sm_share_pct < 100:
        share = str(min(up(way.first.sm_share_pct), 100))
        options["runtime_env"] = {"env_vars": {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": share}}
    return {
        "name": way.name,
        "num_replicas": len(way.instances),
        "max_ongoing_requests": limits.max_ongoing,
        "max_queued_requests": limits.max_queued,
        "ray_actor_options": options,
        "user_config": _user_config(way, file, limits),
    }


def _user_config(way: Variant, file: str | None, limits: ReplicaLimits) -> NamedValues:
    """Return what the application reads: the file, its session, how it batches and whom it refuses."""
    first = way.first
    most_bytes = max(memory_bytes(i, _TARGET) for i in way.instances)
    served = served_as(first.runtime)
    shapes: Names = ()
    if file is not None and served.server.provider_options.shapes:
        shapes = batch_shapes(file, first.dims, first.batch_size, limits.cap)
    user: NamedValues = {
        "model_file": f"{way.model}.onnx",
        "providers": served.providers(first.dtype, most_bytes, shapes),
        "intra_op_threads": 1,  # Ray counts one CPU for each replica
        "memory_bytes": most_bytes,
        "max_batch_size": limits.cap,
        "timeout_s": limits.timeout_s,
    }
    if dims := {name: int(value) for name, value in _DIM.findall(first.dims)}:
        user["dims"] = dims
    if limits.max_waiting is not None:
        user["max_waiting"] = limits.max_waiting
        user["objective_ms"] = limits.objective_ms
        user["latency_ms"] = [[first.batch_size, first.latency_ms]]
    return user


def _remarks(deployment: Deployment, every: Sequence[Variant]) -> Names:
    """Return what a reader of this configuration must know, a line each."""
    lines = []
    for gpu, accelerator in _accelerators(deployment).items():
        ways = [v for v in every if v.first.gpu_type == gpu]
        fractions = itertools.chain.from_iterable([_fraction(v)] * len(v.instances) for v in ways)
        needed = _gpus_needed(list(fractions))
        used = len({i.gpu_id for v in ways for i in v.instances if i.gpu_id is not None})
        line = f"{gpu}: these fractions fit on {needed} GPU{'s' * (needed > 1)}"
        if used:
            line += f", the plan uses {used}"
        if 0 < used < needed:
            line += (
                ": one number per replica cannot say that a replica needs compute where its neighbour needs memory, "
                "nor that a plan shares compute beyond 100 %; on fewer GPUs some replicas stay pending"
            )
        lines.append(line)
        if accelerator is None:
            lines.append(
                f"{gpu}: Ray has no accelerator type for it, so every GPU of the cluster must be one"
            )
    unknown = sorted({v.model for v in every if replica_limits(v).max_waiting is None})
    if unknown:
        lines.append(
            f"no SLO is known of {', '.join(unknown)}: late requests are answered, up to the time-out"
        )
    return (*lines, *_runtime_remarks(every))


def _runtime_remarks(every: Sequence[Variant]) -> Names:
    """Return what the runtimes that the plan counts on mean for an application that runs ONNX Runtime."""
    lines = []
    dtypes: dict[str, set[str]] = defaultdict(set)
    for way in every:
        dtypes[way.first.runtime].add(way.first.dtype)
    others = [name for name in sorted(dtypes) if served_as(name).name != name]
    if others:
        lines.append(f"planned for {', '.join(others)}; the application runs the files with onnxruntime")
    for name in sorted(dtypes):
        served = served_as(name)
        if served.server.engine_file:
            lines.append(
                f"planned for {name}; the application runs the files with onnxruntime and its "
                f"{served.serving_providers[0]}, which takes the host other times"
            )
        remarks = served.server.provider_options.remarks
        for dtype in sorted(dtypes[name] & set(remarks)):
            lines.append(f"{name}, {dtype}: {remarks[dtype]}")
        if served.build:
            lines.append(f"{name}: {served.build}; the application waits for it at its first start")
    return tuple(lines)


def _gpus_needed(fractions: Sequence[float]) -> int:
    """GPUs on which ``fractions`` fit, the largest placed first, each where it leaves the least room: what
    Ray may need; no fewer than their sum."""
    free: list[int] = []  # room on each GPU, ascending
    for size in sorted((round(f * _STEPS) for f in fractions), reverse=True):
        gpu = bisect.bisect_left(free, size)
        if gpu < len(free):
            room = free.pop(gpu)
        else:
            room = _STEPS
        bisect.insort(free, room - size)
    return len(free)
