"""The record of a runtime: facts that the code asks of a framework, apart from the figures in its TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from gkestimator.core.dtypes import Precision
from gkestimator.core.records import Names, frozen

Provider: TypeAlias = "str | list[str | dict[str, str]]"
"""An execution provider of ONNX Runtime: its name, or a list of its name and its options."""


@frozen
class ServerOptions:
    """Hold options that a server is passed by name: ``always``, those of a dtype word (``by_dtype``), the one that
    takes the most bytes that a model may need (``memory``), and those that take the shapes of the smallest, the usual
    and the largest batch (``shapes``); empty: there is none. ``remarks`` say by dtype word what no option can.
    """

    always: Mapping[str, str] = field(hash=False, default_factory=dict)
    by_dtype: Mapping[str, Mapping[str, str]] = field(hash=False, default_factory=dict)
    memory: str = ""
    shapes: Names = ()
    remarks: Mapping[str, str] = field(hash=False, default_factory=dict)

    def values(self, dtype: str, memory_bytes: int | None, shapes: Names = ()) -> dict[str, str]:
        """Return the options of a model that runs in ``dtype`` and has ``memory_bytes``, None for no bound; ``shapes``
        of its batches as TensorRT writes them, where they are known.
        """
        options = {
            **self.always,
            **self.by_dtype.get(dtype, {}),
            **dict(zip(self.shapes, shapes, strict=False)),
        }
        if self.memory and memory_bytes is not None:
            options[self.memory] = str(memory_bytes)
        return options


@frozen
class ServerForm:
    """Say how servers load a model that was planned for a runtime.

    ``triton_platform`` and ``model_format`` are its platform in Triton's configurations and its format in those of
    KServe. ``engine_file`` is the name of what Triton loads in the place of the ONNX file, ``engine_program`` the
    program that builds it, and ``engine_builder`` the module and function that return its command; empty where the
    ONNX file is loaded.
    ``provider_options`` are those of the first execution provider in ONNX Runtime; ``accelerator`` is its name in
    Triton's backend for that, where it is not the default one, with ``accelerator_options``.
    """

    triton_platform: str = "onnxruntime_onnx"
    model_format: str = "onnx"
    engine_file: str = ""
    engine_program: str = ""
    engine_builder: tuple[str, str] | None = None
    provider_options: ServerOptions = ServerOptions()
    accelerator: str = ""
    accelerator_options: ServerOptions = ServerOptions()


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
    ``extended_patterns`` are those that a user switches off by ``graph_level``: an optimiser's level, an older release.
    ``executor`` is the module and class that profile under it, None where nothing does: then ``measured_by`` says in a
    clause how a user measures instead. ``sweep_prepare_s`` and ``sweep_chunk_s`` are what a sweep spends on each entry
    and on each child process (seconds, :mod:`gkestimator.profiling.sweep.cost`). ``provider_of`` is set where a user
    may also name this runtime as an execution provider of another: that runtime's name and the provider's word.
    ``file_optimiser`` is the program by which users have attentions of a file fused before it runs, where there is one.
    ``server`` says how servers load its models, ``build`` in a sentence what must be built before a model runs under
    it (an engine), of which no time is estimated; empty: nothing.
    ``lacking_operators`` are the types that its engine cannot hold (nor, then, those of ONNX Runtime's own domain).
    ``lowering_name`` is the runtime whose lowering it shares (itself where that is empty). ``permits`` holds, for a
    runtime that takes a dtype word for a permission, the precisions that each word allows, the one that it names first:
    its compiler takes the fastest of them for each kernel, stores what lies between in the narrowest that both sides
    can, and brings float models to 8 bits itself. ``library`` is the last word of the variants of its matrix products
    and convolutions where it brings kernels of its own for those, so that regressors can tell them from others.
    ``fused_attention_from`` is the least compute capability of GPUs on which it fuses attention unless told otherwise.
    """

    name: str
    distributions: tuple[str, ...]
    eager: bool
    unfolds_batchnorm: bool
    serving_providers: tuple[str, ...]
    patterns: frozenset[str]
    operators_as: str
    executor: tuple[str, str] | None = None
    sweep_prepare_s: float = 0.0
    sweep_chunk_s: float = 0.0
    layouts: tuple[str, ...] = ("nchw",)
    lacking_dtypes: Mapping[str, str] = field(hash=False, default_factory=dict)
    extended_patterns: frozenset[str] = frozenset()
    lowering_name: str = ""
    library: str = ""
    fused_attention_from: tuple[int, int] = (0, 0)
    lacking_operators: frozenset[str] = frozenset()
    measured_by: str = ""
    provider_of: tuple[str, str] | None = None
    server: ServerForm = ServerForm()
    build: str = ""
    file_optimiser: str = ""
    permits: Mapping[str, tuple[Precision, ...]] = field(hash=False, default_factory=dict)

    @property
    def lowers_as(self) -> str:
        """Return the name of the lowering: that of another runtime where it is shared, else its own."""
        return self.lowering_name or self.name

    def providers(self, dtype: str, memory_bytes: int | None, shapes: Names = ()) -> list[Provider]:
        """Return the execution providers by rank, as a session of ONNX Runtime takes them: names, or pairs of a name
        and its options (lists, so that YAML holds them too). Parameters: as of :meth:`ServerOptions.values`.
        """
        options = self.server.provider_options.values(dtype, memory_bytes, shapes)
        if not options:
            return list(self.serving_providers)
        first, *others = self.serving_providers
        return [[first, options], *others]

    def patterns_at(self, graph_level: str) -> frozenset[str]:
        """Return the names of the patterns that apply at a level of the graph optimiser, ``basic`` or
        ``extended``.
        """
        if graph_level == "basic":
            return self.patterns - self.extended_patterns
        return self.patterns
