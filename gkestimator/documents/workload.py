"""Read the workload: which models are asked for, how often, within which latency objective (SLO)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.core.records import NamedNumbers, NamedValues, Names, frozen
from gkestimator.documents.checking import Fields, load_yaml

# Bounds that no product of them leaves the range of a float.
_MAX_RATE_RPS = 1e12
_MAX_SLO_MS = 1e9
_MAX_TOKENS = 100_000_000
_MAX_FAN_OUT = 1e6
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_QUICK = re.compile(rf"(?P<name>[^\s:]+):(?P<rate>{_NUMBER}) ?rps@(?P<slo>{_NUMBER}) ?(?P<unit>ms|s)")


@frozen
class LanguageLoad:
    """Hold what requests to a language model are: lengths in tokens, and objectives.

    ``lengths`` names a file of pairs; without it each request is a prompt of ``input_tokens`` and an answer of
    ``output_tokens``. ``slo_ttft_ms`` is the objective of the time to the first token, ``slo_tpot_ms`` of
    the mean time per token after it.
    """

    input_tokens: int | None
    output_tokens: int | None
    lengths: str | None
    slo_ttft_ms: float
    slo_tpot_ms: float


@frozen
class ModelLoad:
    """Hold one model asked for by itself: ``rate_rps`` requests a second, each to be answered within ``slo_ms``.

    ``weight`` says how much a request of this model counts where policies weigh models (fairness); 1 by default.
    ``language``: it is a language model, held to two objectives; ``slo_ms`` is then that of the
    first token.
    """

    name: str
    rate_rps: float
    slo_ms: float
    weight: float = 1.0
    language: LanguageLoad | None = None


@frozen
class Stage:
    """Hold one model of an application. It starts when every stage in ``after`` is done, and is asked ``fan_out``
    times for each execution of the stage it follows (each request of the application, where it follows none)."""

    model: str
    after: Names = ()
    fan_out: float = 1.0


@frozen
class Application:
    """Hold several models behind one request, with one end-to-end SLO. Stages stand after those they follow."""

    name: str
    rate_rps: float
    slo_ms: float
    stages: tuple[Stage, ...]
    weight: float = 1.0

    def rates_rps(self) -> NamedNumbers:
        """Return the requests a second that reach each model: the application's rate times the fan-outs on
        the way (the largest way, where a stage follows several).
        """
        rates: NamedNumbers = {}
        for stage in self.stages:
            before = max((rates[m] for m in stage.after), default=self.rate_rps)
            rates[stage.model] = before * stage.fan_out
        return rates

    def paths(self) -> tuple[Names, ...]:
        """Return every chain of stages from one that follows none to one that nothing follows."""
        after = {s.model: s.after for s in self.stages}
        followed = {m for s in self.stages for m in s.after}
        chains: list[Names] = [(s.model,) for s in self.stages if s.model not in followed]
        done: list[Names] = []
        while chains:
            chain = chains.pop()
            if after[chain[0]]:
                chains.extend((m, *chain) for m in after[chain[0]])
            else:
                done.append(chain)
            # Layers of ten stages that all follow each other have ten billion ways in ten layers.
            if len(chains) + len(done) > 10_000:
                raise DocumentError(
                    f"application {self.name}: found more than 10,000 ways through its stages"
                )
        return tuple(sorted(done))


@frozen
class Workload:
    """Hold what is asked for: models by themselves and applications of several."""

    models: tuple[ModelLoad, ...] = ()
    applications: tuple[Application, ...] = ()

    @property
    def languages(self) -> dict[str, LanguageLoad]:
        """Return the language models by name."""
        return {m.name: m.language for m in self.models if m.language is not None}

    def names(self) -> Names:
        """Return every model asked for, once, in the order of the file."""
        names = [m.name for m in self.models]
        for application in self.applications:
            names += [stage.model for stage in application.stages]
        return tuple(dict.fromkeys(names))

    def model_rates_rps(self) -> NamedNumbers:
        """Return the requests a second that reach each model, by itself and in applications, in the file's
        order.
        """
        rates = dict.fromkeys(self.names(), 0.0)
        for model in self.models:
            rates[model.name] += model.rate_rps
        for application in self.applications:
            for name, rate in application.rates_rps().items():
                rates[name] += rate
        return rates

    def document(self) -> NamedValues:
        """Return the workload as it stands in a plan and in a YAML file; what is as usual is left out."""
        document: NamedValues = {}
        for name, languages in (("models", False), ("language_models", True)):
            loads = [load for load in self.models if (load.language is not None) == languages]
            if loads:
                document[name] = [_load_document(load) for load in loads]
        if self.applications:
            applications = []
            for application in self.applications:
                stages = [_stage_document(stage) for stage in application.stages]
                applications.append({**_load_document(application), "models": stages})
            document["applications"] = applications
        return document


def _load_document(load: ModelLoad | Application) -> NamedValues:
    document: NamedValues = {"name": load.name, "rate_rps": load.rate_rps}
    if isinstance(load, ModelLoad) and load.language is not None:
        known = dataclasses.asdict(load.language)
        document |= {name: value for name, value in known.items() if value is not None}
    else:
        document["slo_ms"] = load.slo_ms
    if load.weight != 1:
        document["weight"] = load.weight
    return document


def _stage_document(stage: Stage) -> NamedValues:
    document: NamedValues = {"model": stage.model}
    if stage.after:
        document["after"] = list(stage.after)
    if stage.fan_out != 1:
        document["fan_out"] = stage.fan_out
    return document


def read_workload(path: Path | str | Mapping[str, Any]) -> Workload:
    """Return the workload in the YAML file at ``path``, or in a mapping of the same fields.

    Raises DocumentError naming the field.
    """
    return workload_from(load_yaml(path, what="a workload"))


def quick_workload(texts: Sequence[str]) -> Workload:
    """Return the workload of ``texts`` such as ``resnet50:900rps@100ms``; each may hold several, separated by commas.

    Raises UsageError naming the part that is of another form, DocumentError for values that no workload may have.
    """
    loads = [_quick_load(part.strip()) for text in texts for part in text.split(",")]
    return workload_from(Fields({"models": loads}, where=",".join(texts)[:100], what="a workload"))


def _quick_load(part: str) -> NamedValues:
    match = _QUICK.fullmatch(part)
    if match is None:
        raise UsageError(
            f"found {part[:60]!r}, expected MODEL:RATErps@OBJECTIVEms, such as resnet50:900rps@100ms"
        )
    scale = 1e3 if match["unit"] == "s" else 1.0
    return {"name": match["name"], "rate_rps": float(match["rate"]), "slo_ms": float(match["slo"]) * scale}


def workload_from(fields: Fields) -> Workload:
    """Return the workload in ``fields``. Raises DocumentError naming the field."""
    fields.whole("schema_version", 1, low=1, high=1)
    models = tuple(_model(entry) for entry in fields.objects("models", [], what="a model of the workload"))
    languages = tuple(
        _language_model(entry)
        for entry in fields.objects("language_models", [], what="a language model of the workload")
    )
    applications = tuple(
        _application(entry) for entry in fields.objects("applications", [], what="an application")
    )
    fields.finish()
    if not models and not applications and not languages:
        raise DocumentError(f"{fields.where}: found no models and no applications, expected some")
    _distinct(fields.where, "models", [m.name for m in models])
    _distinct(fields.where, "language_models", [m.name for m in languages])
    _distinct(fields.where, "applications", [a.name for a in applications])
    return Workload(models=(*models, *languages), applications=applications)


def _distinct(where: str, what: str, names: list[str]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise DocumentError(f"{where}: {what}: {name} stands twice, expected once")
        seen.add(name)


def _load(fields: Fields) -> Mapping[str, Any]:
    return {
        "name": fields.name("name"),
        "rate_rps": fields.number("rate_rps", above=True, high=_MAX_RATE_RPS),
        "slo_ms": _slo(fields, "slo_ms"),
        "weight": _weight(fields),
    }


def _slo(fields: Fields, name: str) -> Any:
    return fields.number(name, above=True, high=_MAX_SLO_MS)


def _weight(fields: Fields) -> Any:
    return fields.number("weight", 1.0, above=True, high=1e6)


def _model(fields: Fields) -> ModelLoad:
    load = ModelLoad(**_load(fields))
    fields.finish()
    return load


def _language_model(fields: Fields) -> ModelLoad:
    name = fields.name("name")
    rate_rps = fields.number("rate_rps", above=True, high=_MAX_RATE_RPS)
    language = LanguageLoad(
        input_tokens=fields.whole("input_tokens", None, low=1, high=_MAX_TOKENS),
        output_tokens=fields.whole("output_tokens", None, low=1, high=_MAX_TOKENS),
        lengths=fields.text("lengths", None),
        slo_ttft_ms=_slo(fields, "slo_ttft_ms"),
        slo_tpot_ms=_slo(fields, "slo_tpot_ms"),
    )
    weight = _weight(fields)
    fields.finish()
    if language.lengths is None and None in (language.input_tokens, language.output_tokens):
        raise fields.fail("input_tokens", "missing, or output_tokens: expected both, or lengths")
    return ModelLoad(
        name=name, rate_rps=rate_rps, slo_ms=language.slo_ttft_ms, weight=weight, language=language
    )


def _application(fields: Fields) -> Application:
    load = _load(fields)
    stages = tuple(
        _stage(entry) for entry in fields.objects("models", what="a stage of an application", limit=1000)
    )
    fields.finish()
    where = f"{fields.where}: models"
    if not stages:
        raise DocumentError(f"{where}: found none, expected at least one stage")
    _distinct(fields.where, "models", [s.model for s in stages])
    return Application(**load, stages=_ordered(where, stages))


def _stage(fields: Fields) -> Stage:
    model = fields.name("model")
    after = fields.words("after", "the models that it follows")
    fan_out = fields.number("fan_out", 1.0, above=True, high=_MAX_FAN_OUT)
    fields.finish()
    return Stage(model=model, after=tuple(dict.fromkeys(after)), fan_out=fan_out)


def _ordered(where: str, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    known = {s.model for s in stages}
    for stage in stages:
        for before in stage.after:
            if before not in known:
                raise DocumentError(
                    f"{where}: {stage.model}: after: {before!r} is not a stage of this application"
                )
    done: dict[str, Stage] = {}
    left = list(stages)
    while left:
        ready = [s for s in left if all(m in done for m in s.after)]
        if not ready:
            names = ", ".join(s.model for s in left[:5])
            raise DocumentError(f"{where}: {names}: follow each other in a circle, expected an order")
        done |= {s.model: s for s in ready}
        left = [s for s in left if s.model not in done]
    return tuple(done.values())
