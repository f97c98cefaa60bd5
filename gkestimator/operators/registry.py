"""Lowering rules: exact keys ``(domain, op_type)`` to a function from an operator to the kernels a runtime
launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeAlias

from gkestimator.core.dtypes import Precision
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Kernel
from gkestimator.core.records import frozen
from gkestimator.operators.records import RuleTable, register_rule


@frozen
class LoweringOptions:
    """What decides which kernels an operator becomes, besides the operator. Hashable: lowerings are cached by
    it.

    ``runtime`` is ``torch`` or ``onnxruntime``; ``dtype`` the effective dtype word (``fp32``, ``tf32``,
    ``fp16``, ``bf16``,
    ``amp``, ``int8``, ``auto`` is already resolved by the caller: ``matmul_precision`` and ``conv_precision``
    say what
    float32 matrix work and convolutions calculate in; ``int8`` is for
    files that hold quantised operators). ``attention`` is ``fused`` or ``eager``. ``half`` is the half
    type that ``fp16``, ``bf16`` and ``amp`` store activations in, else None. ``unfold_batchnorm`` (torch):
    convolutions that an exporter folded a BatchNorm into run it as a kernel of its own, as the author's model
    does; False where the model that runs is folded as well.
    """

    runtime: str
    dtype: str
    matmul_precision: Precision
    conv_precision: Precision
    half: Precision | None = None
    attention: str = "fused"
    unfold_batchnorm: bool = True


@frozen
class Lowered:
    """What one operator becomes.

    ``kernels`` in launch order. ``aliases`` maps output index to the input index whose storage it shares: a
    view (no
    kernel) or an operation done in place. ``host_calls`` counts framework calls: 0 for a view that the
    runtime
    resolves while it plans, 1 for an ordinary call, more where eager mode composes.
    """

    kernels: tuple[Kernel, ...]
    host_calls: int
    aliases: Mapping[int, int] = field(default_factory=dict)


LoweringRule: TypeAlias = Callable[[Operator, LoweringOptions], Lowered]
LOWERINGS: RuleTable[LoweringRule] = RuleTable("lowering_rule")


def lowering_rule(
    *op_types: str, domain: str = "", kind: str | None = None, **traits: Any
) -> Callable[[LoweringRule], LoweringRule]:
    """Register a rule under the exact keys ``(domain, op_type)``; a key registered twice is a programming
    error.

    ``kind`` says in a word what the rule does (``gemm``, ``copy``, ``view``, ...); by default the function's
    name. ``traits`` are fields of :class:`~gkestimator.operators.records.OperatorTraits`.
    """

    def register(rule: LoweringRule) -> LoweringRule:
        keys = [(domain, op_type) for op_type in op_types]
        register_rule("lowering_rule", rule, keys, traits, kind if kind is not None else rule.__name__)
        return rule

    return register
