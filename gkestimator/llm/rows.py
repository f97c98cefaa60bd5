"""Make a row of what was estimated of one batch of requests on one GPU type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gkestimator.core.dtypes import DType
from gkestimator.core.records import NamedValues, frozen
from gkestimator.estimation.engine import Estimated
from gkestimator.estimation.power import model_power
from gkestimator.hardware.gpu_spec import GpuSpec
from gkestimator.llm.memory import MemoryLaw
from gkestimator.llm.profiles import ServingEngine
from gkestimator.llm.source import DecoderSource
from gkestimator.tables.llm_requirement import LlmRequirement


@frozen
class RequestLengths:
    """Hold how long prompts and answers are, and how many are answered together."""

    batch: int
    input_tokens: int
    output_tokens: int

    def contexts(self) -> tuple[tuple[int, float], ...]:
        """Return the lengths of the cache at which steps are estimated, each with its weight in the mean.

        A step's time is all but straight in the length, so Simpson's rule over the first, middle and last step is the
        mean over all.
        """
        steps = self.output_tokens - 1
        first = self.input_tokens
        if steps <= 0:
            return ()
        if steps <= 2:
            return tuple((first + step, 1 / steps) for step in range(steps))
        last = first + steps - 1
        return (first, 1 / 6), ((first + last) // 2, 4 / 6), (last, 1 / 6)


@frozen
class TimeSpan:
    """Hold a time (ms), or a rate or price that follows from one, and the ends of its 90 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> TimeSpan:
        """Return the span times ``factor``."""
        return TimeSpan(value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def over(self, other: TimeSpan) -> TimeSpan:
        """Return this divided by ``other``: low where that is high."""
        return TimeSpan(value=self.value / other.value, low=self.low / other.high, high=self.high / other.low)

    def plus(self, other: TimeSpan) -> TimeSpan:
        """Return the sum of two spans that err together."""
        return TimeSpan(value=self.value + other.value, low=self.low + other.low, high=self.high + other.high)


_NOTHING = TimeSpan(value=0.0, low=0.0, high=0.0)


def _exactly(value: float) -> TimeSpan:
    return TimeSpan(value=value, low=value, high=value)


def _with_ends(name: str, span: TimeSpan) -> NamedValues:
    """Return the column ``name`` with those of its lower and upper end."""
    return {name: span.value, f"{name}_low": span.low, f"{name}_high": span.high}


@frozen
class LlmAnswer:
    """Hold the estimates of a prompt's pass and of steps along the answer (each with its weight in the mean), and the
    laws of memory by the number of GPUs that share the model (None where they cannot).
    """

    source: DecoderSource
    engine: ServingEngine
    dtype: str
    cache: DType
    gpu: GpuSpec
    gpus: int
    lengths: RequestLengths
    prompt: Estimated
    steps: tuple[tuple[Estimated, float], ...]
    step_host: TimeSpan
    laws: Mapping[int, MemoryLaw | None]

    def row(self) -> LlmRequirement:
        """Return the row."""
        lengths = self.lengths
        ttft = self._with_link(self._time(self.prompt), lengths.batch * lengths.input_tokens)
        tpot = self._with_link(self._step_time(), lengths.batch) if self.steps else None
        return LlmRequirement(
            model=self.source.name,
            gpu=self.gpu.name,
            gpus=self.gpus,
            engine=self.engine.name,
            dtype=self.dtype,
            kv_dtype=self.cache.value,
            batch_size=lengths.batch,
            input_tokens=lengths.input_tokens,
            output_tokens=lengths.output_tokens,
            **self._times(ttft, tpot),
            **self._step_parts(),
            **self._memory(),
            coverage_pct=self._coverage(),
            source=f"trained:{self.prompt.estimator}",
            warnings="; ".join(self._warnings()),
        )

    def _time(self, pass_: Estimated) -> TimeSpan:
        """Return the time of a pass without what GPUs exchange: of the kernels alone where a CUDA graph launches them,
        and the host's time beside them.
        """
        m = pass_.measures
        if self.engine.graph:
            kernels = TimeSpan(value=m.gpu_ms, low=m.gpu_low_ms, high=m.gpu_high_ms)
        else:
            kernels = TimeSpan(value=m.latency_ms, low=m.latency_low_ms, high=m.latency_high_ms)
        return kernels.plus(self.step_host)

    def _step_time(self) -> TimeSpan:
        total = _NOTHING
        for step, weight in self.steps:
            total = total.plus(self._time(step).scaled(weight))
        return total

    def _link_ms(self, tokens: int) -> float:
        return self.source.exchange_ms(self.gpus, self.gpu, tokens)

    def _with_link(self, span: TimeSpan, tokens: int) -> TimeSpan:
        """Return ``span`` and the time that GPUs exchange sums for ``tokens``."""
        link = self._link_ms(tokens)
        return span.plus(TimeSpan(value=link, low=link, high=link))

    def _times(self, ttft: TimeSpan, tpot: TimeSpan | None) -> NamedValues:
        """Return the columns of times and rates."""
        more = self.lengths.output_tokens - 1
        columns: NamedValues = {}
        for name, span in (("ttft", ttft), ("tpot", tpot)):
            if span is not None:
                columns |= {
                    f"{name}_ms": span.value,
                    f"{name}_low_ms": span.low,
                    f"{name}_high_ms": span.high,
                }
        whole = ttft
        if tpot is not None:
            whole = ttft.plus(tpot.scaled(more))
            columns |= _with_ends("tokens_per_s_request", _exactly(1e3).over(tpot))
        tokens = self.lengths.batch * self.lengths.output_tokens * 1e3
        rate = _exactly(tokens).over(whole)
        columns |= {"request_ms": whole.value, **_with_ends("tokens_per_s", rate)}
        price = self.gpu.price_per_hour_usd
        if price is not None:
            million = self.gpus * price / 3600 * 1e6
            columns |= _with_ends("usd_per_million_tokens", _exactly(million).over(rate))
        return columns

    def _step_parts(self) -> NamedValues:
        """Return the columns of what a step consists of, and its energy."""
        if not self.steps:
            return {}
        gpu = sum(step.measures.gpu_ms * weight for step, weight in self.steps)
        host = self.step_host.value
        if not self.engine.graph:
            host += sum(step.measures.host_ms * weight for step, weight in self.steps)
        link = self._link_ms(self.lengths.batch)
        columns: NamedValues = {"step_gpu_ms": gpu, "step_host_ms": host, "step_link_ms": link}
        joules = self._energy()
        if joules is not None:
            columns |= _with_ends("energy_j_per_token", joules)
        bounds = {"host": host, "link": link, self._kernels_bind(): gpu}
        columns["binds"] = max(bounds, key=lambda name: bounds[name])
        return columns

    def _kernels_bind(self) -> str:
        """Return ``memory`` or ``compute``: which of the two the step's kernels would take longer for at the peak."""
        step = self.steps[-1][0]
        peak = max(self.gpu.peak_flops_per_s.values())
        moving = step.measures.dram_bytes / self.gpu.dram_bytes_per_s
        return "memory" if moving > step.measures.flops / peak else "compute"

    def _energy(self) -> TimeSpan | None:
        """Return the joules of a token of an answer on all GPUs; None where a pass' power is unknown."""
        lengths = self.lengths
        parts = [(self.prompt, 1.0)]
        parts += [(step, weight * (lengths.output_tokens - 1)) for step, weight in self.steps]
        joules = _NOTHING
        for pass_, times in parts:
            known = model_power(pass_.lowering.program, pass_.predictions, pass_.measures)
            if known is None:
                return None
            j = known.joules
            joules = joules.plus(TimeSpan(value=j.value, low=j.low, high=j.high).scaled(times))
        return joules.scaled(self.gpus / (lengths.batch * lengths.output_tokens))

    def _memory(self) -> NamedValues:
        lengths = self.lengths
        law = self.laws[self.gpus]
        assert law is not None  # a model that cannot be shared so was refused before
        need = law.need(lengths.batch, lengths.input_tokens, lengths.output_tokens)
        share = None
        if law.visible is not None:
            share = 100 * need.total / law.visible
        return {
            "mreq_bytes": need.total,
            "mreq_pct": share,
            "weights_bytes": need.weights,
            "kv_bytes": need.cache,
            "activations_bytes": need.activations,
            "context_bytes": need.context,
            "largest_batch": law.largest_batch(lengths.input_tokens, lengths.output_tokens),
            "longest_context": law.longest_context(lengths.batch, lengths.output_tokens),
            "gpus_needed": self._gpus_needed(),
        }

    def _gpus_needed(self) -> int | None:
        lengths = self.lengths
        for count, law in sorted(self.laws.items()):
            if law is not None and law.fits(lengths.batch, lengths.input_tokens, lengths.output_tokens):
                return count
        return None

    def _coverage(self) -> float:
        """Return the part of the GPU's time, prompt and steps together, that lies inside the trained range."""
        spans = [(self.prompt, 1.0)]
        spans += [(step, weight * (self.lengths.output_tokens - 1)) for step, weight in self.steps]
        total = sum(pass_.measures.gpu_ms * times for pass_, times in spans)
        inside = sum(pass_.measures.gpu_ms * times * pass_.measures.coverage_pct for pass_, times in spans)
        return inside / total

    def _warnings(self) -> Iterator[str]:
        lengths = self.lengths
        law = self.laws[self.gpus]
        needed = self._gpus_needed()
        if law is not None and law.visible is None:
            yield "whether it fits is not known: no source states the memory that programs see on this GPU"
        elif law is not None and not law.fits(lengths.batch, lengths.input_tokens, lengths.output_tokens):
            if len([law for law in self.laws.values() if law is not None]) == 1:
                yield "does not fit on one GPU of this type"
            elif needed is None:
                yield "does not fit, nor on 8 GPUs of this type together"
            else:
                yield f"does not fit on {self.gpus}: needs {needed} GPUs of this type together"
        most = self.source.most_tokens
        if most is not None and lengths.input_tokens + lengths.output_tokens > most:
            yield f"longer than the {most:,} tokens that the model was made for"
        if self.gpus > 1:
            yield "what GPUs exchange is calculated, not learned"
        yield from self.source.notes(self.engine)
