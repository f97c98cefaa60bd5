"""Triton's model configuration as protobuf messages: the part of model_config.proto that is written here.

Source: triton-inference-server/common, protobuf/model_config.proto; names, numbers and types are held against
tritonclient's own copy by a test. Messages are made at run time, in a pool of their own, so that tritonclient
(whose pool holds the whole file) may be loaded beside.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from gkestimator.core.records import NamedValues, Names

PACKAGE = "inference"
# message: fields as (name, number, type, repeated); a type beginning with a capital is a message or enum.
MESSAGES: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "ModelTensorReshape": (("shape", 1, "int64", True),),
    "ModelInput": (
        ("name", 1, "string", False),
        ("data_type", 2, "DataType", False),
        ("dims", 4, "int64", True),
        ("reshape", 5, "ModelTensorReshape", False),
    ),
    "ModelOutput": (
        ("name", 1, "string", False),
        ("data_type", 2, "DataType", False),
        ("dims", 3, "int64", True),
        ("reshape", 5, "ModelTensorReshape", False),
    ),
    "ModelRateLimiter.Resource": (
        ("name", 1, "string", False),
        ("global", 2, "bool", False),
        ("count", 3, "uint32", False),
    ),
    "ModelRateLimiter": (
        ("resources", 1, "ModelRateLimiter.Resource", True),
        ("priority", 2, "uint32", False),
    ),
    "ModelInstanceGroup": (
        ("name", 1, "string", False),
        ("count", 2, "int32", False),
        ("gpus", 3, "int32", True),
        ("kind", 4, "ModelInstanceGroup.Kind", False),
        ("rate_limiter", 6, "ModelRateLimiter", False),
    ),
    "ModelDynamicBatching": (
        ("preferred_batch_size", 1, "int32", True),
        ("max_queue_delay_microseconds", 2, "uint64", False),
    ),
    "ModelOptimizationPolicy": (
        ("execution_accelerators", 4, "ModelOptimizationPolicy.ExecutionAccelerators", False),
    ),
    "ModelOptimizationPolicy.ExecutionAccelerators": (
        ("gpu_execution_accelerator", 1, "ModelOptimizationPolicy.ExecutionAccelerators.Accelerator", True),
    ),
    "ModelOptimizationPolicy.ExecutionAccelerators.Accelerator": (
        ("name", 1, "string", False),
        ("parameters", 2, "ModelOptimizationPolicy.ExecutionAccelerators.Accelerator.ParametersEntry", True),
    ),
    # Triton's file has a map of texts here, which text and bytes hold as such pairs.
    "ModelOptimizationPolicy.ExecutionAccelerators.Accelerator.ParametersEntry": (
        ("key", 1, "string", False),
        ("value", 2, "string", False),
    ),
    "ModelConfig": (
        ("name", 1, "string", False),
        ("platform", 2, "string", False),
        ("max_batch_size", 4, "int32", False),
        ("input", 5, "ModelInput", True),
        ("output", 6, "ModelOutput", True),
        ("instance_group", 7, "ModelInstanceGroup", True),
        ("dynamic_batching", 11, "ModelDynamicBatching", False),
        ("optimization", 12, "ModelOptimizationPolicy", False),
    ),
}
ENUMS: dict[str, Names] = {
    "DataType": (
        *("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"),
        *("TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64"),
        *("TYPE_STRING", "TYPE_BF16"),
    ),
    "ModelInstanceGroup.Kind": ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"),
}


@cache
def _config_class() -> Any:
    from google.protobuf import (  # type: ignore[import-untyped]
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    file = descriptor_pb2.FileDescriptorProto(
        name="gkestimator/model_config.proto", package=PACKAGE, syntax="proto3"
    )
    made: NamedValues = {}
    for name in sorted(MESSAGES, key=lambda n: n.count(".")):  # the outer message before those inside it
        outer, _, inner = name.rpartition(".")
        made[name] = made[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=inner)
    for name, values in ENUMS.items():
        outer, _, inner = name.rpartition(".")
        enum = (made[outer] if outer else file).enum_type.add(name=inner)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        for field, number, kind, repeated in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            entry = made[name].field.add(name=field, number=number, label=label)
            if kind in MESSAGES or kind in ENUMS:
                entry.type = kinds.TYPE_MESSAGE if kind in MESSAGES else kinds.TYPE_ENUM
                entry.type_name = f".{PACKAGE}.{kind}"
            else:
                entry.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.ModelConfig"))


def new_config(**fields: Any) -> Any:
    """Return an empty ``inference.ModelConfig`` with ``fields`` set."""
    return _config_class()(**fields)


def config_text(config: Any) -> str:
    """Return ``config`` in protobuf's text format, as config.pbtxt holds it."""
    from google.protobuf import text_format

    text: str = text_format.MessageToString(config, as_utf8=False, use_index_order=False)
    return text
