"""Run a service: check what it is asked, start Ray, router and controller, and end them in order."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gkestimator.core.errors import UsageError, one_line
from gkestimator.core.extras import install_extra
from gkestimator.core.leftovers import scratch_folder
from gkestimator.core.records import NamedValues, Names, frozen
from gkestimator.documents import PlacementPlan, read_plan
from gkestimator.interference.registry import law_code
from gkestimator.jobs.disk import held_beside
from gkestimator.jobs.ray_cluster import ClusterHead
from gkestimator.serving.access import check_address, read_token
from gkestimator.serving.messages import FleetSettings, RouterSettings, WorkerSettings
from gkestimator.serving.planning import PlanningSettings, ServicePlanner, checked_replan
from gkestimator.serving.served import is_cpu
from gkestimator.serving.signatures import emulated_signatures
from gkestimator.serving.state import ServiceState, plan_digest, read_state
from gkestimator.serving.watching import watched_children
from gkestimator.tables import write_bytes

CONTROLLER = "gkest-controller"
ROUTER = "gkest-router"
_LOOK_S = 0.5
_ANSWER_S = 10.0
_STORE_BYTES = 300_000_000
Say = Callable[[str], None]
Told = Callable[[], None]


@frozen
class ServeSettings:
    """Say what is served and how. ``models`` None: emulated, without files. ``ray_address`` None: Ray on this machine
    alone, started and ended with the service. ``state`` None: kept in a temporary file, for restarts of the controller.
    """

    plan: Path
    planning: PlanningSettings
    models: Path | None
    ray_address: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    token_file: Path | None = None
    requests: Path | None = None
    state: Path | None = None
    timeout_s: float = 30.0
    drop: bool = True
    max_waiting: int | None = None
    threads: int | None = None


class Service:
    """Hold a running service: its router and controller. Make one by :func:`running_service`."""

    def __init__(self, ray: Any, settings: ServeSettings, router: Any, controller: Any, url: str) -> None:
        self.ray = ray
        self.settings = settings
        self.router = router
        self.controller = controller
        self.url = url
        self._away = False

    def look(self) -> list[str]:
        """Return what is new, a line each; a controller or router that is away is said once."""
        lines: list[str] = []
        try:
            status = self.ray.get(self.controller.look.remote(), timeout=_ANSWER_S)
            lines += status.news
            lines += self.ray.get(self.router.news.remote(), timeout=_ANSWER_S)
            self._away = False
        except self.ray.exceptions.RayError as e:
            if not self._away:
                line = str(e).strip().splitlines()[0]
                lines.append(f"the controller or router is away, Ray restarts it: {line}")
            self._away = True
        return lines

    def wait_serving(self, stopping: threading.Event, limit_s: float = 600.0) -> None:
        """Return once the first plan serves, or ``stopping`` is set. Raises UsageError where it cannot."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if stopping.is_set():
                return
            status = self.ray.get(self.controller.look.remote(), timeout=limit_s)
            if status.serving:
                return
            if status.failed is not None:
                raise UsageError(status.failed)
            time.sleep(0.05)
        raise UsageError(f"the plan does not serve after {limit_s:g} s")

    def pids(self) -> dict[str, int]:
        """Return the process numbers of router, controller and workers."""
        pids: dict[str, int] = self.ray.get(self.router.pids.remote(), timeout=_ANSWER_S)
        pids["controller"] = self.ray.get(self.controller.pid.remote(), timeout=_ANSWER_S)
        return pids

    def drain(self, limit_s: float) -> int:
        """Take no more requests, answer those under way; return how many were refused after ``limit_s``."""
        self.ray.kill(self.controller)
        try:
            left: int = self.ray.get(self.router.drain.remote(limit_s), timeout=limit_s + _ANSWER_S)
        except self.ray.exceptions.RayError:
            left = 0  # the router is dead, and with it whatever was under way
        return left

    def end(self) -> None:
        """End every process of the service at once."""
        for actor in (self.controller, self.router):
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.kill(actor)


def _nothing() -> None:
    """Take no note."""


@contextlib.contextmanager
def running_service(
    settings: ServeSettings, say: Say, stopping: threading.Event | None = None, connected: Told = _nothing
) -> Iterator[Service]:
    """Yield the service that ``settings`` ask for, serving; it ends with the context, drained or not.

    ``say`` is told what whoever started it should know. ``connected`` is called once Ray is there, which sets
    handlers of signals; ``stopping``: once it is set, nobody waits for the plan to be loaded. Raises UsageError,
    DocumentError, TableError or OutputError in one line, before anything is started where that can be seen.
    """
    plan = read_plan(settings.plan)
    if plan.workload.languages:
        raise UsageError(
            f"{settings.plan}: found language models, expected models that are served in batches"
        )
    planning = settings.planning
    checked_replan(planning, plan)
    served = ServicePlanner(planning, plan).served(plan)
    door = _door_settings(settings)
    signatures = {}
    if planning.emulate:
        signatures = emulated_signatures(plan, settings.models)
    else:
        _check_files(plan, settings.models)
    if settings.requests is not None:
        write_bytes(settings.requests, b"")  # refused now, where it cannot be written
    with contextlib.ExitStack() as stack:
        state = settings.state
        if state is None:
            folder = stack.enter_context(scratch_folder("gkest-serve"))
            state = folder / "state.json"
        stack.enter_context(held_beside(state))
        begin = _first_state(plan, state, settings, say)
        begin.save(state)
        ray = stack.enter_context(_ray(settings.ray_address))
        connected()
        gpus = _has_gpus(ray, plan, settings, say)
        law = law_code(planning.interference) if planning.emulate else None
        fleet = _fleet_settings(settings, law, signatures, gpus, len(served.replicas))
        service = _started(ray, settings, fleet, door, state)
        stack.callback(service.end)
        service.wait_serving(stopping or threading.Event())
        for note in served.notes:
            say(note)
        say(_begun_words(begin.plan, begin.version, service.url, planning.emulate))
        yield service


def serve_until_told(settings: ServeSettings, drain_s: float, say: Say) -> int:
    """Serve until SIGTERM or SIGINT, then drain for at most ``drain_s``; return the signal's number.

    Raises as :func:`running_service`. It must be called in the main thread.
    """
    stopping = threading.Event()
    told: list[int] = []

    def stop(number: int, _: object) -> None:
        told.append(number)
        stopping.set()

    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))

        def listen() -> None:
            for number in (signal.SIGTERM, signal.SIGINT):  # after Ray, which sets its own
                stack.callback(signal.signal, number, signal.signal(number, stop))

        signal.signal(signal.SIGTERM, _leave)
        try:
            service = stack.enter_context(running_service(settings, say, stopping, listen))
        except SystemExit as e:  # of ours, and of the handler that Ray sets while it starts
            if e.code != signal.SIGTERM:
                raise
            say("ended before it served")
            return int(signal.SIGTERM)
        head = ClusterHead(service.ray)
        while not stopping.wait(_LOOK_S):
            head.look()
            for line in service.look():
                say(line)
        say(f"ending: no new requests; those under way have {drain_s:g} s")
        left = service.drain(drain_s)
        if left:
            say(f"{left} requests were refused at the end of that time")
    say("ended")
    return told[0]


def _leave(number: int, _: object) -> None:
    sys.exit(number)


def _fleet_settings(
    settings: ServeSettings, law: int | None, signatures: Mapping[str, Any], gpus: bool, replicas: int
) -> FleetSettings:
    threads = settings.threads
    if threads is None and not gpus:
        threads = max(1, (os.cpu_count() or 1) // replicas)
    models = None if settings.models is None else str(settings.models.resolve())
    workers = WorkerSettings(
        models=models,
        law=law,
        signatures=signatures,
        drop=settings.drop,
        timeout_s=settings.timeout_s,
        threads=threads,
    )
    spares = 1 if settings.planning.replan is None else 2
    return FleetSettings(workers=workers, gpus=gpus, spares=spares)


def _started(
    ray: Any, settings: ServeSettings, fleet: FleetSettings, door: NamedValues, state: Path
) -> Service:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from gkestimator.serving.controller import Controller
    from gkestimator.serving.router import RequestRouter

    # Files and the door are of this machine.
    here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
    options: NamedValues = {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": 0,
        "max_concurrency": 10_000,
        "scheduling_strategy": here,
    }
    requests = None if settings.requests is None else str(settings.requests.resolve())
    router_settings = RouterSettings(
        fleet=fleet,
        timeout_s=settings.timeout_s,
        drop=settings.drop,
        max_waiting=settings.max_waiting,
        requests=requests,
        door=door,
    )
    try:
        name = f"{ROUTER}-{settings.port}"
        router = ray.remote(RequestRouter).options(name=name, **options).remote(router_settings)
        controller = (
            ray.remote(Controller)
            .options(name=f"{CONTROLLER}-{settings.port}", **options)
            .remote(name, settings.planning, str(state.resolve()))
        )
    except ValueError as e:
        raise UsageError(f"the Ray cluster runs a gkest serve on port {settings.port} already: {e}") from e
    try:
        url = ray.get(router.start.remote(), timeout=120)
    except ray.exceptions.RayTaskError as e:
        raise UsageError(one_line(getattr(e, "cause", e), limit=300)) from e
    return Service(ray, settings, router, controller, url)


def _door_settings(settings: ServeSettings) -> NamedValues:
    """Return what the door is opened with. Raises UsageError: a port in use, an open door without a token."""
    token = None
    if settings.token_file is not None:
        token = read_token(settings.token_file)
    check_address(settings.host, token)
    addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    family, _, _, _, address = addresses[0]
    with socket.socket(family, socket.SOCK_STREAM) as test:
        test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            test.bind(address)
        except OSError as e:
            raise UsageError(f"port {settings.port} of {settings.host}: {e.strerror or e}") from e
    return {"host": settings.host, "port": settings.port, "token": token}


def _check_files(plan: PlacementPlan, models: Path | None) -> None:
    """Raise UsageError where a model of ``plan`` has no file."""
    if models is None:
        raise UsageError("models: found none, expected a folder of ONNX files (emulated GPUs need none)")
    placed: Names = tuple(dict.fromkeys(r.model for gpu in plan.gpus for r in gpu.replicas))
    for name in placed:
        path = Path(models, f"{name}.onnx")
        if not path.is_file():
            raise UsageError(f"{path}: found no such file, expected the model {name} of the plan")


def _first_state(plan: PlacementPlan, path: Path, settings: ServeSettings, say: Say) -> ServiceState:
    """Return what the service begins with: the state on the disk where that began with the same plan."""
    began = plan_digest(plan)
    words: NamedValues = {
        "plan": str(settings.plan),
        "tables": list(settings.planning.tables),
        "port": settings.port,
        "emulate": settings.planning.emulate,
    }
    version = 1
    if path.exists():
        old = read_state(path)
        if old.began == began:
            say(f"{path}: going on with plan {old.version}")
            return ServiceState(plan=old.plan, version=old.version, began=began, settings=words)
        version = old.version + 1
        say(f"{path}: is of another plan; {settings.plan} is plan {version}")
    return ServiceState(plan=plan, version=version, began=began, settings=words)


@contextlib.contextmanager
def _ray(address: str | None) -> Iterator[Any]:
    """Yield the module ``ray``, connected: where this program is already, else as ``address`` says.

    Raises UsageError.
    """
    try:
        import ray
    except ImportError as e:
        raise UsageError(f"gkest serve needs Ray: {install_extra('ray')}") from e
    if ray.is_initialized():
        yield ray
        return
    if address is None:
        options: NamedValues = {
            "address": "local",
            "num_cpus": os.cpu_count(),
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
            # Ray gives its workers the time that others leave: right for batch jobs, not for answers.
            "_system_config": {"worker_niceness": 0},
        }
    else:
        _check_answers(address)
        options = {"address": address}
    start = partial(ray.init, log_to_driver=False, configure_logging=False, **options)
    with contextlib.ExitStack() as stack:
        try:
            if address is None:
                stack.enter_context(watched_children(start))
            else:
                start()
        except (ConnectionError, ValueError, RuntimeError, OSError) as e:
            where = address or "this machine"
            raise UsageError(f"Ray at {where}: {one_line(e, limit=200)}") from e
        stack.callback(ray.shutdown)
        yield ray


def _check_answers(address: str) -> None:
    """Raise UsageError where nothing answers at ``address`` (Ray itself would try for a minute)."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"address {address}: expected HOST:PORT of a Ray cluster, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as e:
        raise UsageError(f"address {address}: no Ray cluster answers there: {e}") from e


def _has_gpus(ray: Any, plan: PlacementPlan, settings: ServeSettings, say: Say) -> bool:
    """Return whether models run on GPUs of the cluster. Raises UsageError where it has some, but too few."""
    if settings.planning.emulate or all(is_cpu(gpu.type) for gpu in plan.gpus):
        return False
    there = int(ray.cluster_resources().get("GPU", 0))
    if there == 0:
        say("Ray has no GPU here: the CPU serves, whatever the plan's times say (emulated GPUs keep to them)")
        return False
    if there < len(plan.gpus):
        raise UsageError(
            f"the plan uses {len(plan.gpus)} GPUs, expected as many in the Ray cluster: found {there}"
        )
    return True


def _begun_words(plan: PlacementPlan, version: int, url: str, emulated: bool) -> str:
    replicas = sum(len(gpu.replicas) for gpu in plan.gpus)
    how = "emulated" if emulated else "served"
    models = len(plan.workload.names())
    where = f"{models} models, {replicas} replicas on {len(plan.gpus)} GPUs"
    return f"plan {version} of {plan.policy} is {how} at {url}: {where}"
