"""The controller: holds the plan, counts what comes, runs the policy again, and has the router change what runs."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError

from gkestimator.core.errors import one_line
from gkestimator.core.records import frozen
from gkestimator.serving.messages import RouterReport, RouterState
from gkestimator.serving.moves import plan_moves
from gkestimator.serving.planning import PlanningSettings, ServicePlanner, SourceCounter
from gkestimator.serving.served import ServedPlan
from gkestimator.serving.state import ServiceState, read_state
from gkestimator.simulation.replanning.triggers import Trigger, make_trigger

_TICK_S = 1.0
_END_S = 0.05


@frozen
class ControllerStatus:
    """Hold what the controller says of itself: the plan's version, and whether that plan serves."""

    version: int
    serving: bool
    failed: str | None
    news: tuple[str, ...]


class Controller:
    """Keep the service as the plan says, and the plan as the rates say. It is a Ray actor with a name.

    Its state is on the disk, and what runs is asked of the router: a new life of it goes on where the last one ended.
    """

    def __init__(self, router: str, settings: PlanningSettings, state: str) -> None:
        """Take the name of the router's actor, and the file of the state."""
        import ray

        self._router: Any = ray.get_actor(router)
        self._settings = settings
        self._path = Path(state)
        self._state = read_state(self._path)
        self._planner: ServicePlanner | None = None
        self._born = ""
        self._serving = False
        self._failed: str | None = None
        self._news: list[str] = []
        self._outcomes: Counter[str] = Counter()
        self._main: asyncio.Task[None] | None = None
        self._deciding: asyncio.Task[None] | None = None
        self._trigger: Trigger | None = None
        self._counter: SourceCounter | None = None
        self._asked = False
        self._zero = time.monotonic()  # of the trigger's periods

    async def pid(self) -> int:
        """Return the number of this process."""
        return os.getpid()

    async def look(self) -> ControllerStatus:
        """Return how things stand and what is new; see that the controller's own loop runs."""
        if self._main is None:
            self._main = asyncio.get_running_loop().create_task(self._run())
        news, self._news = self._news, []
        return ControllerStatus(
            version=self._state.version,
            serving=self._serving,
            failed=self._failed,
            news=tuple(news),
        )

    async def _run(self) -> None:
        """Count and decide for ever; an error ends neither."""
        replan = self._settings.replan
        tick_s = replan.control_ms / 1e3 if replan is not None else _TICK_S
        while True:
            begun = time.monotonic()
            try:
                await self._tick()
            except RayActorError:
                self._born = ""  # the router died: Ray starts it again, without a plan
            except Exception as e:  # noqa: BLE001 - a controller must not stop for an error of one turn
                self._failed = one_line(e, limit=300)
                if not self._serving:
                    self._news.append(f"the plan cannot be served: {self._failed}")
            await asyncio.sleep(max(0.0, tick_s - (time.monotonic() - begun)))

    async def _tick(self) -> None:
        if self._planner is None:
            self._planner = await asyncio.to_thread(ServicePlanner, self._settings, self._state.plan)
            if self._settings.replan is not None:
                self._trigger = make_trigger(self._settings.replan, self._state.plan.workload)
                self._counter = SourceCounter(self._state.plan.workload)
        if not self._born:
            await self._restore()
            return
        report: RouterReport = await self._router.report.remote(dict(self._outcomes))
        if report.born != self._born:
            self._serving = False
            await self._restore()
            return
        self._observe(report)

    async def _restore(self) -> None:
        """Bring what runs to the plan of the state, whatever the router has."""
        assert self._planner is not None
        await self._router.start.remote()
        before: RouterState = await self._router.state.remote()
        served = await asyncio.to_thread(self._planner.served, self._state.plan)
        words = await self._change(served, self._state, wait_ms=0.0)
        await self._router.report.remote(dict(self._outcomes))  # counts from before this life say nothing
        self._born = before.born
        self._serving = True
        self._failed = None
        if before.version:
            self._news.append(f"the controller is back with plan {self._state.version}: {words}")

    def _observe(self, report: RouterReport) -> None:
        """Count the arrivals, and let the policy run again where that is due and no change is under way."""
        self._asked = self._asked or bool(report.arrived)
        # Before anybody asks, the plan's rates are all that is known: no requests are no reason to take it down.
        if self._trigger is None or self._counter is None or not self._asked:
            return
        self._trigger.observe(self._counter.rates_rps(report.arrived, report.seconds))
        if self._deciding is not None and not self._deciding.done():
            return
        now_ms = (time.monotonic() - self._zero) * 1e3
        reason = self._trigger.due(now_ms)
        if reason is not None:
            workload = self._trigger.asked()
            self._trigger.planned(now_ms)
            self._deciding = asyncio.get_running_loop().create_task(self._decide(reason, workload))

    async def _decide(self, reason: str, workload: Any) -> None:
        """Have the policy plan for ``workload``, in a thread, and change to its plan; the running one stays if that
        fails.
        """
        assert self._planner is not None and self._settings.replan is not None
        begun = time.monotonic()
        try:
            plan = await asyncio.to_thread(self._planner.plan_for, workload)
            served = await asyncio.to_thread(self._planner.served, plan)
            decided_s = time.monotonic() - begun
            version = self._state.version + 1
            state = ServiceState(
                plan=plan, version=version, began=self._state.began, settings=self._state.settings
            )
            words = await self._change(served, state, wait_ms=self._settings.replan.load_ms)
        except Exception as e:  # noqa: BLE001 - whatever fails, the running plan goes on
            self._outcomes["failed"] += 1
            line = one_line(getattr(e, "cause", None) or e, limit=300)
            self._news.append(f"re-plan ({reason}) failed, plan {self._state.version} stays: {line}")
            return
        self._outcomes["done"] += 1
        self._news.append(
            f"plan {version} ({reason}): {words}; decided in {decided_s:.2f} s, served after "
            f"{time.monotonic() - begun:.2f} s"
        )

    async def _change(self, served: ServedPlan, state: ServiceState, *, wait_ms: float) -> str:
        """Bring what runs to ``served``, the plan of ``state``: load what is new beside the old, move the traffic, end
        what is left. Return in words what that was.
        """
        assert self._planner is not None
        router = self._router
        running: RouterState = await router.state.remote()
        moves = plan_moves(running.loaded, served, self._planner.pool)
        objectives = {replica.model: replica.slo_ms for replica in served.replicas}
        for name in served.models:
            objectives.setdefault(name, _objective_ms(served, name))
        try:
            await router.load.remote(moves.loads, wait_ms)
        except Exception:
            await router.end.remote([replica.name for replica in moves.loads])
            raise
        if state is not self._state:
            # Before the traffic moves: a controller that dies now goes on with the new plan, which is loaded.
            await asyncio.to_thread(state.save, self._path)
            self._state = state
        version = state.version
        late = {replica.name for replica in moves.late_loads}
        await router.switch.remote([r for r in moves.target if r.name not in late], objectives, version)
        await router.end.remote(moves.ends)
        if moves.late_loads:
            await self._gone(moves.ends)
            await router.load.remote(moves.late_loads, wait_ms)
            await router.switch.remote(moves.target, objectives, version)
        return moves.words

    async def _gone(self, names: tuple[str, ...]) -> None:
        """Return once replicas that were told to end have ended."""
        while True:
            state: RouterState = await self._router.state.remote()
            if not {replica.name for replica in state.loaded} & set(names):
                return
            await asyncio.sleep(_END_S)


def _objective_ms(served: ServedPlan, model: str) -> float:
    """Return the objective of a model that no replica is placed for."""
    workload = served.plan.workload
    objectives = [m.slo_ms for m in workload.models if m.name == model]
    objectives += [a.slo_ms for a in workload.applications for s in a.stages if s.model == model]
    return min(objectives)
