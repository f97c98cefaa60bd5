"""A policy as a third party would write it: first fit. The tests install it beside a real ``entry_points.txt``."""

from collections import defaultdict

from gkestimator.placement.policy import Placed, Placement, Policy


class FirstFit(Policy):
    """Replicas at the largest feasible batch, model by model, each on the first GPU with room for its Creq and Mreq."""

    name = "first-fit"
    summary = "First fit, for tests."
    needs = ("creq", "memory")
    options = ("limit",)
    packs_by_creq = True

    def __init__(self, limit=None):
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise ValueError(f"limit: found {limit!r}, expected a whole number from 1")
        self._limit = limit or 100_000

    def place(self, problem):
        used = defaultdict(lambda: [0.0, 0.0])
        gpus = list(problem.gpus)
        rented = defaultdict(int)
        placed = []
        for model in sorted(problem.models, key=lambda m: m.name):
            left = model.rate_rps
            for _ in range(self._limit):
                if left <= 1e-9 * model.rate_rps:
                    break
                found = self._fit(model, gpus, used) or self._rent(problem, model, gpus, rented)
                if found is None:
                    break
                gpu, candidate = found
                used[gpu.id][0] += candidate.creq_pct
                used[gpu.id][1] += candidate.memory_pct
                placed.append(Placed(gpu=gpu, model=model.name, candidate=candidate))
                left -= candidate.throughput_rps
        return Placement(placed=tuple(placed))

    def _fit(self, model, gpus, used):
        for gpu in gpus:
            for candidate in sorted(model.feasible(gpu.type), key=lambda c: -c.batch_size):
                creq, memory = used[gpu.id]
                if creq + candidate.creq_pct <= 100 and memory + candidate.memory_pct <= 100:
                    return gpu, candidate
        return None

    def _rent(self, problem, model, gpus, rented):
        for offer in sorted(problem.offers, key=lambda o: (o.price_per_hour, o.type)):
            fitting = [c for c in model.feasible(offer.type) if c.creq_pct <= 100 and c.memory_pct <= 100]
            if fitting and (offer.limit is None or rented[offer.type] < offer.limit):
                gpus.append(problem.rented(offer.type, rented[offer.type]))
                rented[offer.type] += 1
                return gpus[-1], max(fitting, key=lambda c: c.batch_size)
        return None
