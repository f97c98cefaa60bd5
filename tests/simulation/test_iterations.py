"""Replicas of language models: the engine beside plain objects, request by request, and beside closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from _reference_iterations import Replica

from gkestimator.core.errors import UsageError
from gkestimator.llm.steps import StepLaw
from gkestimator.simulation.arrivals.base import Chunk
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import Result
from gkestimator.simulation.system import (
    SimGpu,
    SimIterating,
    SimModel,
    SimReplica,
    SimSource,
    SimStage,
    System,
    TokenPace,
)

# Times that floats hold exactly, so that equal means equal: halves, and axes of powers of two.
LAW = StepLaw(
    batches=(1, 4, 16),
    prompts=(16, 64, 256, 1024),
    contexts=(16.0, 128.0, 1024.0),
    prompt_ms=((8.0, 12.0, 40.0, 200.0), (12.0, 40.0, 150.0, 760.0), (40.0, 150.0, 590.0, 3000.0)),
    step_ms=((8.0, 8.5, 12.0), (9.0, 10.0, 20.0), (12.0, 16.0, 64.0)),
)


def iterating(**fields: Any) -> SimIterating:
    values = {
        "law": LAW,
        "page_tokens": 16,
        "pages": 64,
        "most_sequences": 16,
        "budget_tokens": 128,
        "chunked": False,
        **fields,
    }
    return SimIterating(**values)


def system(what: SimIterating, lengths: list[tuple[int, int]], replicas: int = 1, **pace: float) -> System:
    objectives = TokenPace(**{"ttft_ms": 500.0, "tpot_ms": 20.0, **pace})
    served = [
        SimReplica(
            id=f"r{k}",
            model=0,
            gpu=k,
            batch_size=1,
            max_wait_ms=0.0,
            weight=1.0,
            batches=(1,),
            latencies_ms=(1000.0,),
            iterates=what,
        )
        for k in range(replicas)
    ]
    source = SimSource(
        name="m",
        application=False,
        rate_rps=1.0,
        slo_ms=1e6,
        stages=(SimStage(model=0),),
        lengths=tuple(lengths),
    )
    return System(
        sources=(source,),
        models=(SimModel(name="m", slo_ms=1e6, paced=objectives),),
        gpus=tuple(SimGpu(id=f"g{k}", type="x", price_per_hour=None) for k in range(replicas)),
        replicas=tuple(served),
    )


def run(what: System, times: list[float] | np.ndarray, chunks: int = 1, **options: Any) -> Result:
    times = np.asarray(times, float)
    end = float(times[-1]) + 1.0
    simulator = Simulator(what, Options(duration_ms=end, keep_requests=True, window_ms=end, **options))
    ends = np.linspace(0.0, end, chunks + 1)[1:]
    before = 0.0
    for until in ends:
        simulator.advance(Chunk(end_ms=float(until), times_ms=(times[(times >= before) & (times < until)],)))
        before = until
    return simulator.finish()


@pytest.mark.parametrize("seed", range(60))
def test_every_request_as_plain_objects_serve_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    what = iterating(
        chunked=bool(seed % 2),
        pages=int(rng.choice([12, 24, 64, 1000])),
        page_tokens=int(rng.choice([1, 16])) * (1 if seed % 3 else 2),
        most_sequences=int(rng.choice([1, 3, 16])),
        budget_tokens=int(rng.choice([16, 33, 128, 2048])),
    )
    count = 300
    lengths = [
        (int(p), int(a)) for p, a in zip(rng.integers(1, 240, count), rng.integers(1, 60, count), strict=True)
    ]
    gaps = rng.exponential(rng.choice([20.0, 100.0, 400.0]), count)
    times = np.cumsum(np.round(gaps) if seed % 5 == 0 else gaps)
    reference = Replica(what)
    expected = reference.serve([(t, p, a) for t, (p, a) in zip(times.tolist(), lengths, strict=True)])
    result = run(system(what, lengths), times, chunks=int(rng.integers(1, 5)))
    requests, tokens = result.requests, result.tokens
    assert requests is not None and tokens is not None and tokens.first_ms is not None
    done = sorted((s for s in expected if s.ended is not None), key=lambda s: (s.arrived, s.prompt, s.answer))
    order = np.argsort(requests.arrived_ms, kind="stable")
    total = requests.router_ms + requests.network_ms + requests.queue_ms + requests.gpu_ms
    assert int(result.dropped[0]) == sum(s.dropped for s in expected)
    assert len(order) == len(done) == int(result.done[0])
    seen = sorted(
        zip(
            requests.arrived_ms.tolist(),
            requests.queue_ms.tolist(),
            tokens.first_ms.tolist(),
            total.tolist(),
            strict=True,
        )
    )
    plain = sorted((s.arrived, s.began - s.arrived, s.first - s.arrived, s.ended - s.arrived) for s in done)
    np.testing.assert_allclose(seen, plain, rtol=1e-9, atol=1e-6)
    assert int(tokens.preempted[0]) == reference.preempted
    assert int(tokens.iterations[0]) == reference.iterations
    assert int(tokens.tokens[0]) == sum(s.answer for s in done)
    kept = [
        s.first - s.arrived <= 500 * (1 + 1e-9) and s.ended - s.first <= (s.answer - 1) * 20 * (1 + 1e-9)
        for s in done
    ]
    assert int(result.on_time[0]) == sum(kept)


def test_the_seeds_reach_every_rule() -> None:
    """Preemption, refusal and full batches occur among the cases above, or they would show little."""
    rng = np.random.default_rng(0)
    lengths = [
        (int(p), int(a)) for p, a in zip(rng.integers(1, 240, 300), rng.integers(1, 60, 300), strict=True)
    ]
    for chunked in (False, True):
        reference = Replica(iterating(pages=24, chunked=chunked))
        served = reference.serve([(20.0 * k, p, a) for k, (p, a) in enumerate(lengths)])
        assert reference.preempted > 10
        tight = Replica(iterating(pages=12, chunked=chunked))
        assert any(s.dropped for s in tight.serve([(20.0 * k, p, a) for k, (p, a) in enumerate(lengths)]))
        assert not any(s.dropped for s in served)


def test_one_request_takes_its_prompt_and_its_steps() -> None:
    """Constant lengths, no neighbour: TTFT is the prompt's pass, then one step a token, the context growing by one."""
    result = run(system(iterating(), [(64, 32)]), [0.0, 10_000.0])
    steps = sum(LAW.step(1, 64 + k) for k in range(31))
    assert result.requests is not None and result.tokens is not None
    np.testing.assert_allclose(result.tokens.first_ms, [12.0, 12.0])
    np.testing.assert_allclose(result.requests.gpu_ms, [12.0 + steps] * 2)


@pytest.mark.parametrize("count", [4, 16])
def test_a_batch_that_comes_together_takes_the_closed_form(count: int) -> None:
    """The first is admitted alone; the others by its end, as one pass; then all step together."""
    what = iterating(pages=1000, budget_tokens=4096)
    result = run(system(what, [(64, 20)]), [0.0] * count)
    first = LAW.prompt(1, 64)
    others = first + LAW.prompt(count - 1, 64)
    steps = 0.0
    for k in range(19):
        # All have made the same number of tokens from the second pass on.
        steps += LAW.step(count, 64 + k)
    assert result.requests is not None and result.tokens is not None
    np.testing.assert_allclose(np.sort(result.tokens.first_ms), [first] + [others] * (count - 1))
    np.testing.assert_allclose(result.requests.gpu_ms.max(), others + steps)
    np.testing.assert_allclose(result.end_ms, others + steps)


def test_steady_load_keeps_littles_law() -> None:
    """Constant lengths and gaps: sequences in the mean are rate times time, and time per token is the law's at them."""
    gap, answer = 64.0, 65
    what = iterating(pages=4096, budget_tokens=4096)
    result = run(system(what, [(16, answer)]), gap * np.arange(4000), warmup_ms=20_000.0)
    requests, tokens = result.requests, result.tokens
    assert requests is not None and tokens is not None
    span = result.until_ms - result.from_ms
    inside = float(tokens.sequences_ms[0]) / span
    served = requests.gpu_ms.mean()
    assert inside == pytest.approx(served / gap, rel=0.02)
    # n sequences: a step a token for each, and one prompt's pass for every answer of a neighbour.
    n = inside
    cycle = (answer - 1) * LAW.step(n, 16 + answer / 2) + (served / gap) * LAW.prompt(1, 16)
    assert served == pytest.approx(cycle, rel=0.03)


def test_replicas_share_requests_and_gpus_are_busy() -> None:
    rng = np.random.default_rng(3)
    lengths = [
        (int(p), int(a)) for p, a in zip(rng.integers(1, 200, 50), rng.integers(1, 60, 50), strict=True)
    ]
    times = np.cumsum(rng.exponential(80.0, 400))
    for routing in ("round-robin", "least-load"):
        result = run(system(iterating(pages=200), lengths, replicas=3), times, routing=routing)
        assert result.replica_requests.sum() == 400 and result.replica_requests.min() > 100
        assert (result.gpu_busy_ms == result.busy_ms).all() and (result.busy_ms > 0).all()


@pytest.mark.parametrize(
    "fields", [{"pages": 0}, {"budget_tokens": 8}, {"page_tokens": 0}, {"most_sequences": 0}]
)
def test_what_cannot_be_served_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="replica 'r0'"):
        run(system(iterating(**fields), [(16, 16)]), [0.0])
