"""Triton: configurations read back with Triton's own message (which rejects a typo), every field compared; refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import serving
from serving import deployment, instance

from gkestimator.core.errors import GkestimatorError
from gkestimator.documents import PlacementPlan, Workload
from gkestimator.documents.plan import PlanTotals
from gkestimator.exporting.deployment import Deployment
from gkestimator.exporting.triton import TritonExporter
from gkestimator.exporting.triton_config import ENUMS, MESSAGES, config_text, new_config

pb = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="needs tritonclient[grpc] (extra test)")
text_format = pytest.importorskip("google.protobuf.text_format")


def parse(text: str) -> Any:
    """``text`` as Triton reads it. Raises text_format.ParseError."""
    return text_format.Parse(text, pb.ModelConfig())


def exported(found: Deployment, **options: Any) -> dict[str, str]:
    return {str(f.path): f.text for f in TritonExporter(**options).files(found)}


def arguments(text: str) -> list[str]:
    """What `grep -v '^#'` leaves for the command line."""
    return [word for line in text.splitlines() if not line.startswith("#") for word in line.split()]


def limiter(creq: int, mreq: int, priority: int, **turn: int) -> Any:
    resources = [
        pb.ModelRateLimiter.Resource(name=name, count=count)
        for name, count in ({"creq_pct_x100": creq, "mreq_mib": mreq} | turn).items()
    ]
    return pb.ModelRateLimiter(resources=resources, priority=priority)


def one_server() -> Deployment:
    return deployment(
        [
            instance("resnet50", id="resnet50-0", mreq_bytes=2000 * serving.MIB + 1, goodput_rps=320.0),
            instance("resnet50", id="resnet50-1", mreq_bytes=2000 * serving.MIB + 1, goodput_rps=320.0),
            instance(
                "resnet50",
                id="resnet50-2",
                gpu_id="V100-SXM2-16GB-3",
                goodput_rps=320.0,
                max_wait_ms=20.00099,
            ),
            instance(
                "nlp/bert",
                gpu_id="V100-SXM2-16GB-3",
                batch_size=2,
                max_wait_ms=None,
                goodput_rps=27.0,
                creq_pct=50.0,
            ),
        ],
        notes=("note\nwith a line",),
    )


def test_every_field_says_what_the_plan_says() -> None:
    files = exported(one_server())
    assert set(files) == {"resnet50/config.pbtxt", "nlp_bert/config.pbtxt", "triton-arguments.txt"}
    # 40 batches a second on each replica of ResNet against 13.5 of BERT: a third of its chances.
    assert parse(files["resnet50/config.pbtxt"]) == pb.ModelConfig(
        name="resnet50",
        platform="onnxruntime_onnx",
        max_batch_size=8,
        instance_group=[
            pb.ModelInstanceGroup(count=2, kind="KIND_GPU", gpus=[0], rate_limiter=limiter(3124, 2001, 1)),
            pb.ModelInstanceGroup(count=1, kind="KIND_GPU", gpus=[1], rate_limiter=limiter(3124, 2001, 1)),
        ],
        dynamic_batching=pb.ModelDynamicBatching(
            preferred_batch_size=[8], max_queue_delay_microseconds=20_000
        ),
    )
    assert parse(files["nlp_bert/config.pbtxt"]) == pb.ModelConfig(
        name="nlp_bert",
        platform="onnxruntime_onnx",
        max_batch_size=2,
        instance_group=[
            pb.ModelInstanceGroup(count=1, kind="KIND_GPU", gpus=[1], rate_limiter=limiter(5000, 2000, 3))
        ],
        dynamic_batching=pb.ModelDynamicBatching(
            preferred_batch_size=[2], max_queue_delay_microseconds=87_500
        ),
    )


def test_the_arguments_give_the_limiter_each_gpu() -> None:
    text = exported(one_server())["triton-arguments.txt"]
    assert arguments(text) == [
        "--rate-limit=execution_count",
        "--rate-limit-resource=creq_pct_x100:10000:0",
        "--rate-limit-resource=mreq_mib:16144:0",
        "--rate-limit-resource=creq_pct_x100:10000:1",
        "--rate-limit-resource=mreq_mib:16144:1",
    ]
    assert "# GPU 1 is V100-SXM2-16GB-3 of the plan." in text
    assert "# nlp_bert/1/model.onnx is to be the ONNX file of nlp/bert." in text
    assert "# note with a line" in text


def test_every_file_says_what_is_enforced() -> None:
    assert all(f"# {TritonExporter.limits}" in text for text in exported(one_server()).values())


def test_an_export_is_the_same_byte_for_byte() -> None:
    assert exported(one_server()) == exported(one_server())


def test_gpus_with_the_same_share_one_group() -> None:
    here = [instance("m", id=f"m-{n}", gpu_id=f"V100-SXM2-16GB-{n}") for n in range(4)]
    config = parse(exported(deployment(here))["m/config.pbtxt"])
    assert [(g.count, list(g.gpus)) for g in config.instance_group] == [(1, [0, 1, 2, 3])]


def test_batch_sizes_of_one_model_become_models_of_their_own() -> None:
    here = [instance("m", id="m-0", batch_size=8), instance("m", id="m-1", batch_size=32, goodput_rps=100.0)]
    files = exported(deployment(here))
    assert parse(files["m_b8/config.pbtxt"]).max_batch_size == 8
    assert parse(files["m_b32/config.pbtxt"]).max_batch_size == 32
    assert "m_b8 (300 req/s), m_b32 (100 req/s)" in files["triton-arguments.txt"]


def test_a_model_of_the_name_of_a_file_gets_another_folder() -> None:
    files = exported(deployment([instance("triton-arguments.txt"), instance("a/b"), instance("A#B", id="x")]))
    assert set(files) == {
        "triton-arguments.txt",
        "triton-arguments.txt_2/config.pbtxt",
        "a_b/config.pbtxt",
        "A_B_2/config.pbtxt",
    }
    assert all(parse(text).name == path.split("/")[0] for path, text in files.items() if "/" in path)


def test_servers_hold_one_gpu_type_and_so_many_gpus() -> None:
    here = [instance("m", id=f"m-{n}", gpu_id=f"V100-SXM2-16GB-{n}") for n in range(5)]
    here.append(instance("m", id="m-5", gpu_type="T4", gpu_id="T4-0", mreq_bytes=10 * serving.MIB))
    files = exported(deployment(here), gpus_per_server=3)
    assert set(files) == {
        f"server-{n}/{name}" for n in range(3) for name in ("m/config.pbtxt", "triton-arguments.txt")
    }
    gpus = [list(parse(files[f"server-{n}/m/config.pbtxt"]).instance_group[0].gpus) for n in range(3)]
    assert gpus == [[0, 1, 2], [0, 1], [0]]
    assert "--rate-limit-resource=creq_pct_x100:10000:2" in arguments(files["server-0/triton-arguments.txt"])
    assert "# GPU 0 is T4-0 of the plan." in files["server-2/triton-arguments.txt"]


def test_replicas_of_a_partition_wait_for_their_turn() -> None:
    """Each takes the one piece of a resource of its partition, so Triton runs one of them at a time."""
    here = [
        instance("a", id="a-0", partition="p 1", creq_pct=90.0),
        instance("b", id="b-0", partition="p 1", creq_pct=80.0),
        instance("c", id="c-0", partition="q", creq_pct=10.0),
        instance("d", id="d-0", creq_pct=0.0),
    ]
    files = exported(deployment(here))
    turns = {}
    for name in "abcd":
        resources = parse(files[f"{name}/config.pbtxt"]).instance_group[0].rate_limiter.resources
        turns[name] = {r.name: r.count for r in resources if r.name.startswith("turn")}
    assert turns == {"a": {"turn_0": 1}, "b": {"turn_0": 1}, "c": {"turn_1": 1}, "d": {}}
    words = arguments(files["triton-arguments.txt"])
    assert "--rate-limit-resource=turn_0:1:0" in words and "--rate-limit-resource=turn_1:1:0" in words
    # 90 (one of a and b at a time) + 10: the limiter holds nothing else back.
    assert not any("rate limiter lets" in m for m in TritonExporter().messages(deployment(here)))


def test_what_fits_the_gpu_fits_after_rounding_up() -> None:
    here = [
        instance(name, id=name, creq_pct=100 / 3, mreq_bytes=5381 * serving.MIB + 1, mreq_pct=33.3)
        for name in "abc"
    ]
    words = arguments(exported(deployment(here))["triton-arguments.txt"])
    assert "--rate-limit-resource=creq_pct_x100:10002:0" in words  # 3 x 3334
    over = [*here, instance("d", creq_pct=1.0, mreq_bytes=serving.MIB // 2)]
    words = arguments(exported(deployment(over))["triton-arguments.txt"])
    assert "--rate-limit-resource=creq_pct_x100:10000:0" in words
    assert "--rate-limit-resource=mreq_mib:16147:0" in words  # 3 x 5382 + 1: the memory still fits
    (message, _) = TritonExporter().messages(deployment(over))
    assert "V100-SXM2-16GB-0: its replicas have a Creq of 101.0 % together" in message


def test_a_table_names_no_gpu() -> None:
    row = instance("m", gpu_id=None, slo_ms=None, max_wait_ms=None, goodput_rps=None)
    files = exported(deployment([row], origin="table"))
    (group,) = parse(files["m/config.pbtxt"]).instance_group
    assert (group.count, list(group.gpus), group.rate_limiter.priority) == (1, [], 0)
    batching = parse(files["m/config.pbtxt"]).dynamic_batching
    assert list(batching.preferred_batch_size) == [8] and batching.max_queue_delay_microseconds == 0
    assert "No SLO is known" in files["m/config.pbtxt"]
    assert arguments(files["triton-arguments.txt"])[1:] == [
        "--rate-limit-resource=creq_pct_x100:10000",
        "--rate-limit-resource=mreq_mib:16144",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"creq_pct": None}, "resnet50-0: its Creq is not known, and triton needs it"),
        ({"mreq_bytes": None}, "resnet50-0: its Mreq is not known"),
        ({"creq_pct": 130.0}, "resnet50-0: found a Creq of 130 %"),
        ({"mreq_bytes": 30000 * serving.MIB}, "resnet50-0: found a Mreq of 185.8 %"),
        (
            {"mreq_bytes": 2**62, "mreq_pct": 1.0},
            "resnet50-0: found a Mreq of 4,611,686,018,427,387,904 bytes",
        ),
        ({"sm_share_pct": 40.0}, "resnet50-0 is confined to 40 % of the SMs"),
        ({"latency_ms": 101.0}, "resnet50-0: latency 101 ms is above its SLO 100 ms"),
        ({"model": "a\nb"}, "not a name that can be exported"),
        ({"model": "../../etc/x"}, "not a name that can be exported"),
        ({"model": "x" * 300}, "not a name that can be exported"),
    ],
)
def test_what_cannot_be_expressed_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(GkestimatorError) as refused:
        exported(deployment([instance(**changes)]))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_two_files_of_one_name_are_named() -> None:
    files = {"timm/resnet50": "timm/resnet50.onnx", "ethz/resnet50": "ethz/resnet50.onnx"}
    found = replace(deployment([instance("resnet50"), instance("bert")]), models=files)
    lines = [line for line in TritonExporter().messages(found) if "left to Triton" in line]
    assert len(lines) == 2
    assert "several files of that name (ethz/resnet50, timm/resnet50)" in lines[0]
    assert "outputs of bert are left to Triton" in lines[1]


# --- the message --------------------------------------------------------------------------------------------------


def test_the_message_is_tritons() -> None:
    """Every message, field, number, type and enum value written here is in Triton's own file."""
    theirs = pb.DESCRIPTOR
    for name, fields in MESSAGES.items():
        outer, _, inner = name.rpartition(".")
        found = theirs.message_types_by_name[outer or inner]
        found = found.nested_types_by_name[inner] if outer else found
        for field, number, kind, repeated in fields:
            there = found.fields_by_name[field]
            # protobuf has is_repeated from 6.31 on, and label until 7.
            many = there.is_repeated if hasattr(there, "is_repeated") else there.label == there.LABEL_REPEATED
            assert (there.number, many) == (number, repeated), (name, field)
            named = there.message_type or there.enum_type
            if named is not None:
                assert named.full_name == f"inference.{kind}"
            else:
                assert there.type == getattr(type(there), f"TYPE_{kind.upper()}"), (name, field)
    for name, values in ENUMS.items():
        outer, _, inner = name.rpartition(".")
        enum = (
            theirs.message_types_by_name[outer].enum_types_by_name[inner]
            if outer
            else theirs.enum_types_by_name[inner]
        )
        assert [v.name for v in enum.values] == list(values)


@pytest.mark.parametrize("name", ['a"b', "a\nname: 'x'", "\\", "é\u2028", "}", "# x"])
def test_texts_are_escaped(name: str) -> None:
    text = config_text(new_config(name=name))
    assert parse(text).name == name
    assert text.isascii() and len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("max_batch_size: 8", "max_batchsize: 8"),
        ("max_batch_size: 8", "max_batch_size: 8.5"),
        ("kind: KIND_GPU", "kind: KIND_GPUS"),
        ("max_queue_delay_microseconds: ", "max_queue_delay_us: "),
        ("count: 3124", "count: -3124"),
        ("rate_limiter {", "ratelimiter {"),
    ],
)
def test_the_check_rejects_what_is_wrong(right: str, wrong: str) -> None:
    text = exported(one_server())["resnet50/config.pbtxt"]
    assert right in text
    with pytest.raises(text_format.ParseError):
        parse(text.replace(right, wrong, 1))


def late(found: Deployment) -> Deployment:
    """``found`` with a plan that was judged by late batching."""
    plan = PlacementPlan(
        policy="gkest",
        creq="sm-util-mean",
        objective="goodput",
        seed=0,
        workload=Workload(),
        gpus=(),
        totals=PlanTotals(goodput_rps=1.0, expected_goodput_rps=None, gpus_used=1, cost_per_hour=None),
        batching="late",
    )
    return replace(found, plan=plan)


def test_a_late_plan_has_its_largest_batches_and_nothing_waits_to_fill() -> None:
    given = deployment([instance(max_batch_size=32, max_wait_ms=0.0)])
    asked = parse(exported(late(given))["resnet50/config.pbtxt"])
    assert asked.max_batch_size == 32
    assert not asked.dynamic_batching.preferred_batch_size
    assert asked.dynamic_batching.max_queue_delay_microseconds == 0
    early = parse(exported(given)["resnet50/config.pbtxt"])
    assert (early.max_batch_size, list(early.dynamic_batching.preferred_batch_size)) == (8, [8])


def test_a_plan_judged_by_another_law_of_batching_is_said() -> None:
    given = late(deployment([instance()]))
    assert TritonExporter.batching == "late" and TritonExporter().notices(given) == TritonExporter().messages(
        given
    )
    early = replace(given, plan=replace(given.plan, batching="early")) if given.plan else given
    (first, *_) = TritonExporter().notices(early)
    assert "forms batches late, and the plan was judged by early batching" in first
