"""Triton Inference Server: a model repository, and the arguments that its rate limiter needs.

Form: model_config.proto of Triton. One server holds GPUs of one type, at most ``gpus_per_server``; a plan for
more becomes several repositories."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from gkestimator.core.errors import UsageError, one_line
from gkestimator.core.options import spelled
from gkestimator.core.records import Names, frozen
from gkestimator.exporting.deployment import Deployment, Exporter, ExportFile, Instance
from gkestimator.exporting.engines import (
    SCRIPT,
    add_accelerator,
    build_remarks,
    build_script,
    file_of,
    form_remarks,
    served,
)
from gkestimator.exporting.rounding import MIB, compute_pct, memory_bytes, memory_mib, up
from gkestimator.exporting.triton_config import config_text, new_config
from gkestimator.exporting.triton_tensors import TritonTensor, TritonTensors, tensors
from gkestimator.exporting.variants import Variant, variants
from gkestimator.onnx_io.reading.signature import read_signature

ARGUMENTS = "triton-arguments.txt"
COMPUTE = "creq_pct_x100"  # hundredths of a percent: whole percents would keep three thirds of a GPU apart
MEMORY = "mreq_mib"
_TARGET = "triton"
_WHOLE = 100 * 100
_PRIORITIES = 2**31 - 1


@frozen
class _Server:
    """One Triton server: ``ordinals`` are its GPUs' numbers by the plan's id; none for a table."""

    folder: PurePosixPath
    gpu_type: str
    ordinals: Mapping[str, int]
    instances: tuple[Instance, ...]


class TritonExporter(Exporter):
    """``<model>/config.pbtxt`` for each model and ``triton-arguments.txt``, in a folder for each server where
    there are several."""

    name = _TARGET
    summary = "Triton model repository (config.pbtxt per model) and the server's rate-limiter arguments"
    batching = "late"
    limits = (
        "Triton enforces concurrency alone: through the rate limiter (which needs the arguments in "
        f"{ARGUMENTS}) no more runs on a GPU at once than its Creq ({COMPUTE}) and Mreq ({MEMORY}) add up to. "
        "Neither the SMs nor the memory of a model are confined; every model stays loaded."
    )
    options = ("gpus_per_server",)

    def __init__(self, *, gpus_per_server: int = 8) -> None:
        if gpus_per_server < 1:
            raise UsageError(f"gpus per server: found {gpus_per_server}, expected at least 1")
        self._gpus_per_server = gpus_per_server

    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return the repositories.

        Raises UsageError: Creq or Mreq null or more than a GPU, a replica confined to a share of the SMs, a
        latency above the SLO, a batch size that the ONNX file (where given) does not allow."""
        for instance in deployment.instances:
            visible = deployment.specs[instance.gpu_type].visible_bytes()
            if not _fits(memory_bytes(instance, _TARGET), visible):
                raise UsageError(
                    f"{instance.id}: found a Mreq of {instance.mreq_bytes:,} bytes, and a {instance.gpu_type} has "
                    f"{visible:,}"
                )
            if instance.sm_share_pct < 100:
                raise UsageError(
                    f"{_TARGET}: {instance.id} is confined to {instance.sm_share_pct:g} % of the SMs, and Triton runs "
                    "every model in one process: expected a plan of whole GPUs, or target mps"
                )
        files: list[ExportFile] = []
        for server in _servers(deployment, self._gpus_per_server):
            ways = variants(server.instances, reserved=(ARGUMENTS, SCRIPT))
            priorities = _priorities(ways)
            for way in ways:
                path = deployment.models.get(way.model)
                if path is None:
                    shapes = None
                else:
                    most = replace(way.first, batch_size=_largest_batch(deployment, way))
                    shapes = tensors(read_signature(path), most)
                text = self._config(deployment, server, way, shapes, priorities.get(way.name))
                files.append(ExportFile(path=server.folder / way.name / "config.pbtxt", text=text))
            text = self._arguments(deployment, server, ways)
            files.append(ExportFile(path=server.folder / ARGUMENTS, text=text))
            largest = partial(_largest_batch, deployment)
            script = build_script(server.gpu_type, ways, deployment.models, largest, self.limits)
            if script is not None:
                files.append(ExportFile(path=server.folder / SCRIPT, text=script))
        return tuple(files)

    def messages(self, deployment: Deployment) -> Names:
        """Return where the rate limiter holds back what the plan lets run at once, and the models without a
        file."""
        lines = []
        for server in _servers(deployment, self._gpus_per_server):
            lines += _held_back(server)
            lines += build_remarks(variants(server.instances), server.gpu_type)
        missing = sorted({i.model for i in deployment.instances} - set(deployment.models))
        for model in list(missing):
            alike = sorted(name for name in deployment.models if name.endswith(f"/{model}"))
            if alike:  # files of one stem are told apart by their folders: which one is meant, nobody said
                missing.remove(model)
                lines.append(
                    f"inputs and outputs of {model} are left to Triton: {spelled('models')} has several files of "
                    "that name "
                    f"({', '.join(alike[:4])}{', ...' * (len(alike) > 4)}); expected one"
                )
        if missing:
            lines.append(
                f"inputs and outputs of {', '.join(missing)} are left to Triton, which reads them from the file"
            )
        return tuple(lines)

    def _config(
        self,
        deployment: Deployment,
        server: _Server,
        way: Variant,
        shapes: TritonTensors | None,
        priority: int | None,
    ) -> str:
        config = new_config(name=way.name, platform=served(way).server.triton_platform)
        config.max_batch_size = _largest_batch(deployment, way)
        if shapes is not None:
            config.max_batch_size = shapes.max_batch_size
            _add_tensors(config.input, shapes.inputs)
            _add_tensors(config.output, shapes.outputs)
        resources = {
            COMPUTE: max(up(100 * compute_pct(i, _TARGET)) for i in way.instances),
            MEMORY: max(memory_mib(i, _TARGET) for i in way.instances),
        }
        for count, turn, gpus in _groups(server, way):
            group = config.instance_group.add(count=count, kind="KIND_GPU", gpus=gpus)
            turns = {turn: 1} if turn else {}
            for name, amount in (resources | turns).items():
                group.rate_limiter.resources.add(name=name, count=amount)
            if priority is not None:
                group.rate_limiter.priority = priority
        add_accelerator(config, way)
        wait = way.wait_ms
        if config.max_batch_size:
            if not _is_late(deployment):
                config.dynamic_batching.preferred_batch_size.append(way.first.batch_size)
            if wait is not None:
                # Rounded down: waiting longer would miss the objective.
                config.dynamic_batching.max_queue_delay_microseconds = math.floor(wait * 1e3)
        comments = [
            f"Written by gkest export. The model's file: {way.name}/1/{file_of(way)}",
            self.limits,
            *_config_remarks(way, shapes, wait),
        ]
        return _commented(comments, config_text(config))

    def _arguments(self, deployment: Deployment, server: _Server, ways: Sequence[Variant]) -> str:
        usage = f"tritonserver --model-repository=. $(grep -v '^#' {ARGUMENTS})"
        comments = [
            f"Arguments of Triton's rate limiter for this repository, written by gkest export. Use: {usage}",
            self.limits,
            *(f"GPU {n} is {gpu} of the plan." for gpu, n in server.ordinals.items()),
            *(_file_words(way) for way in ways),
            *_held_back(server),
            *_split_remarks(ways),
            *deployment.notes,
        ]
        lines = ["--rate-limit=execution_count"]
        if not server.ordinals:
            visible = deployment.specs[server.gpu_type].visible_bytes() // MIB
            lines += [
                f"--rate-limit-resource={COMPUTE}:{_WHOLE}",
                f"--rate-limit-resource={MEMORY}:{visible}",
            ]
        for gpu, number in server.ordinals.items():
            here = [i for i in server.instances if i.gpu_id == gpu]
            for name, amount in _available(here, deployment.specs[server.gpu_type].visible_bytes()):
                lines.append(f"--rate-limit-resource={name}:{amount}:{number}")
        return _commented(comments, "".join(f"{line}\n" for line in lines))


def _file_words(way: Variant) -> str:
    """Return what is to lie where Triton looks for the model."""
    path = f"{way.name}/1/{file_of(way)}"
    if served(way).server.engine_file:
        return f"{path} is what {SCRIPT} makes of the ONNX file of {way.model}."
    return f"{path} is to be the ONNX file of {way.model}."


def _add_tensors(target: Any, tensors: Sequence[TritonTensor]) -> None:
    for tensor in tensors:
        entry = target.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        if tensor.scalar:
            entry.reshape.SetInParent()


def _commented(comments: Sequence[str], text: str) -> str:
    return "".join(f"# {one_line(c, limit=2000)}\n" for c in comments) + text


def _servers(deployment: Deployment, most: int) -> list[_Server]:
    """Return the GPUs of each type, in the plan's order, ``most`` to a server."""
    by_type: dict[str, dict[str | None, list[Instance]]] = defaultdict(lambda: defaultdict(list))
    for instance in deployment.instances:
        by_type[instance.gpu_type][instance.gpu_id].append(instance)
    servers: list[_Server] = []
    for gpu_type, by_gpu in by_type.items():
        gpus = list(by_gpu)
        for start in range(0, len(gpus), most):
            here = gpus[start : start + most]
            server = _Server(
                folder=PurePosixPath(f"server-{len(servers)}"),
                gpu_type=gpu_type,
                ordinals={gpu: n for n, gpu in enumerate(here) if gpu is not None},
                instances=tuple(i for gpu in here for i in by_gpu[gpu]),
            )
            servers.append(server)
    if len(servers) == 1:
        return [replace(servers[0], folder=PurePosixPath())]
    return servers


def _turns(here: Sequence[Instance]) -> dict[str, str]:
    """Return the resource that the replicas of each partition of one GPU take in turn."""
    partitions = dict.fromkeys(i.partition for i in here if i.partition is not None)
    return {partition: f"turn_{number}" for number, partition in enumerate(partitions)}


def _groups(server: _Server, way: Variant) -> list[tuple[int, str | None, list[int]]]:
    """(instances on each GPU, the turn that they wait for, GPUs): GPUs with the same share one group."""
    if not server.ordinals:
        return [(len(way.instances), None, [])]
    counts: Counter[tuple[int, str | None]] = Counter()
    here: dict[str | None, list[Instance]] = defaultdict(list)
    for instance in server.instances:
        here[instance.gpu_id].append(instance)
    turns = {gpu_id: _turns(instances) for gpu_id, instances in here.items()}
    for instance in way.instances:
        assert instance.gpu_id is not None
        turn = None
        if instance.partition is not None:
            turn = turns[instance.gpu_id][instance.partition]
        counts[server.ordinals[instance.gpu_id], turn] += 1
    groups: dict[tuple[int, str | None], list[int]] = defaultdict(list)
    for (gpu, turn), count in counts.items():
        groups[count, turn].append(gpu)
    return [(count, turn, sorted(gpus)) for (count, turn), gpus in groups.items()]


def _available(here: Sequence[Instance], visible: int) -> list[tuple[str, int]]:
    """Return what one GPU has of each resource. Where its replicas fit, their demands fit after rounding up
    as well."""
    compute = _at_once(here)
    memory = [memory_bytes(i, _TARGET) for i in here]
    rounded = sum(up(100 * c) for c in compute)
    mib = sum(memory_mib(i, _TARGET) for i in here)
    most_compute = _WHOLE
    if _fits(math.fsum(compute), 100.0):
        most_compute = max(_WHOLE, rounded)
    most_mib = visible // MIB
    if _fits(sum(memory), visible):
        most_mib = max(most_mib, mib)
    turns = [(turn, 1) for turn in _turns(here).values()]
    return [(COMPUTE, most_compute), (MEMORY, most_mib), *turns]


def _at_once(here: Sequence[Instance]) -> list[float]:
    """Creq of what may run at once on one GPU: of a partition, whose replicas take turns, the largest."""
    largest: dict[object, float] = defaultdict(float)
    for number, instance in enumerate(here):
        part: object = instance.partition
        if part is None:
            part = number
        largest[part] = max(largest[part], compute_pct(instance, _TARGET))
    return list(largest.values())


def _fits(demand: float, room: float) -> bool:
    return demand <= room * (1 + 1e-9)


def _held_back(server: _Server) -> list[str]:
    lines = []
    for gpu in server.ordinals:
        total = math.fsum(_at_once([i for i in server.instances if i.gpu_id == gpu]))
        if not _fits(total, 100.0):
            lines.append(
                f"{gpu}: its replicas have a Creq of {total:.1f} % together; the rate limiter lets them run up to "
                "100 % at once, so some wait where the plan lets them share the GPU"
            )
    return lines


def _priorities(ways: Sequence[Variant]) -> dict[str, int]:
    """Return the rate limiter's weights: an instance with priority 2 gets half the chances of one with 1, so
    the one that is to run most batches a second has 1. Empty where the rates are unknown."""
    runs = {}
    for way in ways:
        if way.goodput_rps is None:
            return {}
        runs[way.name] = way.goodput_rps / (way.first.batch_size * len(way.instances))
    most = max(runs.values())
    if most <= 0:
        return {}
    weights = {name: min(max(1, round(most / r)), _PRIORITIES) for name, r in runs.items() if r > 0}
    last = max(weights.values())
    return {name: weights.get(name, last) for name in runs}


def _is_late(deployment: Deployment) -> bool:
    """Say whether the plan counts on batches of whatever waits once an instance is free, as Triton forms them."""
    return deployment.plan is not None and deployment.plan.batching == "late"


def _largest_batch(deployment: Deployment, way: Variant) -> int:
    """Return how many requests Triton may put into one batch: the planned batch, or what a late plan has room for."""
    if not _is_late(deployment):
        return way.first.batch_size
    return min(i.max_batch_size or i.batch_size for i in way.instances)


def _config_remarks(way: Variant, shapes: TritonTensors | None, wait: float | None) -> list[str]:
    lines = []
    if shapes is None:
        lines.append(
            "Inputs and outputs are left to Triton's auto-completion, which reads them from the file."
        )
    else:
        if not shapes.inputs or not shapes.outputs:
            lines.append(
                "The file does not declare every type and shape: what is left out, Triton completes."
            )
        if shapes.left_out:
            lines.append(
                f"Outputs that do not begin with the batch are left out: {', '.join(shapes.left_out)}."
            )
    if shapes is not None and not shapes.max_batch_size:
        lines.append(
            f"The file has no open batch dimension: it runs at batch {way.first.batch_size} as it is."
        )
    elif wait is None:
        lines.append(
            "No SLO is known: max_queue_delay_microseconds is left out, so Triton waits for no batch to fill."
        )
    return [*lines, *form_remarks(way)]


def _split_remarks(ways: Sequence[Variant]) -> list[str]:
    by_model: dict[str, list[Variant]] = defaultdict(list)
    for way in ways:
        by_model[way.model].append(way)
    lines = []
    for model, several in by_model.items():
        if len(several) > 1:
            parts = []
            for way in several:
                rate = "" if way.goodput_rps is None else f" ({way.goodput_rps:.6g} req/s)"
                parts.append(f"{way.name}{rate}")
            lines.append(
                f"{model} runs in several ways, among which the client divides its requests: {', '.join(parts)}."
            )
    return lines
