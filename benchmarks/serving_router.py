"""Measure what the router of ``gkest serve`` costs by itself: requests a second, and its CPU time for each.

    python benchmarks/serving_router.py [--seconds 10] [--clients 64] [--bytes 4]

The router runs in this process, its workers are Ray actors that emulate GPUs of no time at all, so that the rate that
is reached is the router's and Ray's. Without the door: HTTP comes on top.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import time
from collections import deque
from pathlib import Path

import numpy as np
import ray

from gkestimator.documents import Replica
from gkestimator.serving.backend import ServedSignature, ServedTensor
from gkestimator.serving.messages import FleetSettings, RouterSettings, WorkerSettings
from gkestimator.serving.router import RequestRouter
from gkestimator.serving.served import ServedReplica

_WORKERS = 2
_TERMS = (0.0,) * 8


def _replica(number: int) -> ServedReplica:
    asked = Replica(
        id=f"m-{number}",
        model="m",
        runtime="onnxruntime",
        dtype="fp32",
        dims="",
        batch_size=64,
        sm_share_pct=100.0,
        partition=None,
        duty_cycle_ms=None,
        latency_ms=0.01,
        goodput_rps=1.0,
    )
    return ServedReplica(
        name=asked.id,
        asked=asked,
        gpu=f"gpu-{number}",
        gpu_type="T4",
        lane=asked.id,
        cap=64,
        slo_ms=1000.0,
        batches=(1,),
        times_ms=(0.01,),
        features=None,
        terms=_TERMS,
    )


def _memory_mib() -> float:
    """Return what this process holds; its peak would say nothing of growth."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def _measure(seconds: float, clients: int, size: int) -> None:
    tensor = (ServedTensor(name="x", datatype="FP32", shape=(size // 4,)),)
    signatures = {"m": ServedSignature(inputs=tensor, outputs=tensor[:1], max_batch=64)}
    workers = WorkerSettings(
        models=None, law=0, signatures=signatures, drop=True, timeout_s=30.0, threads=None
    )
    fleet = FleetSettings(workers=workers, gpus=False)
    router = RequestRouter(
        RouterSettings(fleet=fleet, timeout_s=30.0, drop=True, max_waiting=None, requests=None, door={})
    )
    replicas = [_replica(number) for number in range(_WORKERS)]
    await router.load(replicas, 0.0)
    await router.switch(replicas, {"m": 1000.0}, 1)
    # The last: what is kept of every request would be the growth that is looked for.
    times: deque[float] = deque(maxlen=10_000)
    count = 0
    until = time.perf_counter() + seconds

    async def client() -> None:
        nonlocal count
        sample = {
            "x": np.zeros(size // 4, np.float32)
        }  # its own: what is sent twice in a call is packed once
        while time.perf_counter() < until:
            begun = time.perf_counter()
            await router.infer("m", [sample], None)
            times.append(time.perf_counter() - begun)
            count += 1

    begun, cpu_s = time.perf_counter(), time.process_time()
    work = asyncio.gather(*(client() for _ in range(clients)))
    await asyncio.sleep(seconds / 10)
    early_mib = _memory_mib()
    await work
    wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
    p50, p99 = np.percentile(times, (50, 99)) * 1e3
    late_mib = _memory_mib()
    print(
        f"{clients} clients, {size} bytes: {count / wall_s:.0f} req/s, {1e6 * cpu_s / count:.0f} us of CPU "
        f"each, p50 {p50:.2f} ms, p99 {p99:.2f} ms, {early_mib:.0f} MiB after a tenth of the time, {late_mib:.0f} MiB at the end"
    )
    await router.drain(1.0)


def main() -> None:
    """Run the measurement for one number of clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--bytes", type=int, default=4)
    asked = parser.parse_args()
    ray.init(
        address="local",
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        object_store_memory=200_000_000,
        log_to_driver=False,
        _system_config={"worker_niceness": 0},
    )
    try:
        asyncio.run(_measure(asked.seconds, asked.clients, asked.bytes))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
