"""The record of a runtime: facts that the code asks of a framework, apart from the figures in its TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gkestimator.core.dtypes import Precision
from gkestimator.core.records import frozen


@frozen
class RuntimeTraits:
    """Hold what the code asks of a runtime beside the figures of ``datasets/runtimes/<name>.toml``.

    ``distributions`` are the packages that ``gkest doctor`` looks for. ``eager`` says that a Python program calls one
    function for each operator, so that tensors live until Python drops them and views wait for a copy; otherwise a
    graph is optimised before it runs. ``unfolds_batchnorm`` says that BatchNorms which an exporter folded into
    convolutions run as operators of their own. ``serving_providers`` are the execution providers of ONNX Runtime, by
    rank, with which servers run the ONNX file itself under this runtime (Triton, Ray Serve); none where they run the
    file under another. ``patterns`` are the names of the fusion patterns that apply
    (:data:`gkestimator.lowering.patterns.PATTERNS`), ``operators_as`` the runtime by whose name operators say which of
    them launch no kernel or run in place (:class:`gkestimator.operators.records.OperatorTraits`): its own or
    another's. ``lacking_dtypes`` maps a dtype word that the runtime lacks to the reason and the remedy.
    ``layouts`` are those in which a program can store images and the weights of convolutions.
    ``extended_patterns`` are those that a user switches off by the level of the graph optimiser.
    ``executor`` is the module and class that profile under it, None where nothing does. ``sweep_prepare_s`` and
    ``sweep_chunk_s`` are what a sweep spends on each entry and on each child process (seconds,
    :mod:`gkestimator.profiling.sweep.cost`). ``lowering_name`` is the runtime whose lowering it shares (itself where
    that is empty). ``permits`` holds, for a runtime that takes a dtype word for a permission, the precisions that each
    word allows, the one that it names first: its compiler takes the fastest of them for each kernel, stores what lies
    between in the narrowest that both sides can, and brings float models to 8 bits itself. ``library`` is the last word of the variants of its matrix products and convolutions where it brings
    kernels of its own for those, so that regressors can tell them from others.
    """

    name: str
    distributions: tuple[str, ...]
    eager: bool
    unfolds_batchnorm: bool
    serving_providers: tuple[str, ...]
    patterns: frozenset[str]
    operators_as: str
    executor: tuple[str, str] | None
    sweep_prepare_s: float
    sweep_chunk_s: float
    layouts: tuple[str, ...] = ("nchw",)
    lacking_dtypes: Mapping[str, str] = field(hash=False, default_factory=dict)
    extended_patterns: frozenset[str] = frozenset()
    lowering_name: str = ""
    library: str = ""
    permits: Mapping[str, tuple[Precision, ...]] = field(hash=False, default_factory=dict)

    @property
    def lowers_as(self) -> str:
        """Return the name of the lowering: that of another runtime where it is shared, else its own."""
        return self.lowering_name or self.name

    def patterns_at(self, graph_level: str) -> frozenset[str]:
        """Return the names of the patterns that apply at a level of the graph optimiser, ``basic`` or
        ``extended``.
        """
        if graph_level == "basic":
            return self.patterns - self.extended_patterns
        return self.patterns
