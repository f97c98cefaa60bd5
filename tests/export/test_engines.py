"""Runtimes that build engines: what Triton, Ray Serve and KServe are told, and the commands that build them."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
import serving
import yaml
from serving import deployment, instance
from test_triton import late

from gkestimator.exporting.deployment import Deployment
from gkestimator.exporting.engines import SCRIPT, batch_shapes
from gkestimator.exporting.kserve import KServeExporter
from gkestimator.exporting.modelmesh import ModelMeshExporter
from gkestimator.exporting.ray_app.worker import ServedModel
from gkestimator.exporting.ray_serve import RayServeExporter
from gkestimator.exporting.triton import TritonExporter
from gkestimator.hardware.runtimes import served_as

pb = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="needs tritonclient[grpc] (extra test)")
text_format = pytest.importorskip("google.protobuf.text_format")


def triton(given: Deployment) -> dict[str, str]:
    return {str(file.path): file.text for file in TritonExporter().files(given)}


def commands(script: str) -> list[list[str]]:
    """Return the calls of trtexec, as a shell divides them into words."""
    lines = [line for line in script.splitlines() if line.startswith("trtexec ")]
    return [shlex.split(line) for line in lines]


def planned(runtime: str = "tensorrt", **fields: Any) -> Any:
    return instance(runtime=runtime, **({"dtype": "fp16"} | fields))


def test_each_gpu_type_has_a_repository_and_a_script_of_its_own(tmp_path: Path) -> None:
    file = serving.network(tmp_path / "resnet50.onnx", sides=None)
    here = [
        planned(dims="H=8,W=8"),
        planned(dims="H=8,W=8", id="resnet50-1", gpu_id="T4-0", gpu_type="T4", batch_size=4),
    ]
    files = triton(deployment(here, models={"resnet50": str(file)}))
    for server, gpu, batch in (("server-0", "V100-SXM2-16GB", 8), ("server-1", "T4", 4)):
        config = text_format.Parse(files[f"{server}/resnet50/config.pbtxt"], pb.ModelConfig())
        assert (config.platform, config.max_batch_size) == ("tensorrt_plan", batch)
        assert not config.HasField("optimization")
        script = files[f"{server}/{SCRIPT}"]
        assert f"of the type {gpu}," in script
        assert commands(script) == [
            [
                "trtexec",
                "--onnx=$MODELS/resnet50.onnx",
                "--saveEngine=resnet50/1/model.plan",
                "--fp16",
                "--memPoolSize=workspace:2000",
                "--minShapes=image:1x3x8x8",
                f"--optShapes=image:{batch}x3x8x8",
                f"--maxShapes=image:{batch}x3x8x8",
                "--skipInference",
            ]
        ]
    messages = " ".join(TritonExporter().notices(deployment(here)))
    assert messages.count("how long that takes is not known") == 2


def test_engines_of_a_late_plan_take_its_largest_batches(tmp_path: Path) -> None:
    file = serving.network(tmp_path / "resnet50.onnx")
    given = late(deployment([planned(max_batch_size=32)], models={"resnet50": str(file)}))
    (words,) = commands(triton(given)[SCRIPT])
    assert {"--optShapes=image:8x3x8x8", "--maxShapes=image:32x3x8x8"} <= set(words)


@pytest.mark.parametrize(
    ("dtype", "flags"),
    [
        ("fp32", {"--noTF32"}),
        ("tf32", set()),
        ("bf16", {"--bf16"}),
        ("int8", {"--int8", "--fp16"}),
        ("fp8", {"--fp8", "--fp16"}),
    ],
)
def test_a_precision_is_a_permission(dtype: str, flags: set[str]) -> None:
    script = triton(deployment([planned(dtype=dtype)]))[SCRIPT]
    ((*words,),) = commands(script)
    others = {word.split("=")[0] for word in words[1:]}
    assert others == {"--onnx", "--saveEngine", "--memPoolSize", "--skipInference", *flags}
    # Without the file nobody knows its inputs: the script says which flags are to be added.
    assert "add minShapes" in script
    assert ("calib=" in script) == (dtype == "int8")


def test_a_size_that_the_plan_does_not_know_is_left_to_be_filled_in(tmp_path: Path) -> None:
    file = serving.network(tmp_path / "resnet50.onnx", sides=None)
    (words,) = commands(triton(deployment([planned(dims="H=8")], models={"resnet50": str(file)}))[SCRIPT])
    assert "--minShapes=image:1x3x8xSIZE" in words
    assert batch_shapes(file, "H=8", 4, 8) == ()
    fixed = serving.network(tmp_path / "fixed.onnx", batch=8)
    (words,) = commands(triton(deployment([planned()], models={"resnet50": str(fixed)}))[SCRIPT])
    assert not [word for word in words if "Shapes" in word]


def test_names_of_strangers_stay_words_of_the_script(tmp_path: Path) -> None:
    file = serving.network(tmp_path / "resnet50.onnx")
    graph = onnx.load(file)
    name = 'a b; $(rm) `c` "d" input:0'
    graph.graph.input[0].name = graph.graph.node[0].input[0] = name
    onnx.save(graph, file)
    (words,) = commands(triton(deployment([planned()], models={"resnet50": str(file)}))[SCRIPT])
    assert f"--minShapes='{name}':1x3x8x8" in words
    assert batch_shapes(file, "", 4, 8)[0] == f"{name}:1x3x8x8"  # ONNX Runtime knows no quotes


def test_onnxruntime_is_told_its_accelerator() -> None:
    files = triton(deployment([planned("onnxruntime_tensorrt", dtype="int8")]))
    assert SCRIPT not in files
    config = text_format.Parse(files["resnet50/config.pbtxt"], pb.ModelConfig())
    assert config.platform == "onnxruntime_onnx"
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    assert dict(accelerator.parameters) == {
        "precision_mode": "INT8",
        "max_workspace_size_bytes": str(2000 * serving.MIB),
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": "/tmp/triton-tensorrt-engines",
    }
    text = files["resnet50/config.pbtxt"]
    assert "how long that takes is not known" in text and "calibration table" in text
    plain = text_format.Parse(triton(deployment([instance()]))["resnet50/config.pbtxt"], pb.ModelConfig())
    assert not plain.HasField("optimization")


@pytest.mark.parametrize("runtime", ["tensorrt", "onnxruntime_tensorrt"])
def test_ray_serve_passes_the_options_of_the_provider(runtime: str, tmp_path: Path) -> None:
    file = serving.network(tmp_path / "resnet50.onnx")
    given = deployment([planned(runtime)], models={"resnet50": str(file)})
    document = yaml.safe_load(RayServeExporter().files(given)[0].text)
    user = document["applications"][0]["deployments"][0]["user_config"]
    (first, options), second = user["providers"]
    assert (first, second) == ("TensorrtExecutionProvider", "CUDAExecutionProvider")
    assert options == {
        "trt_fp16_enable": "True",
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": "engines",
        "trt_timing_cache_enable": "True",
        "trt_max_workspace_size": str(2000 * serving.MIB),
        "trt_profile_min_shapes": "image:1x3x8x8",
        "trt_profile_opt_shapes": "image:8x3x8x8",
        "trt_profile_max_shapes": f"image:{user['max_batch_size']}x3x8x8",
    }
    assert "how long that takes is not known" in " ".join(RayServeExporter().notices(given))


def test_a_session_keeps_engines_beside_the_model_and_falls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    asked = {}

    class AskedError(Exception):
        pass

    def session(path: str, *, sess_options: Any, providers: list[Any]) -> None:
        asked["providers"] = providers
        raise AskedError

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    gpu = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    wanted = [["TensorrtExecutionProvider", {"trt_engine_cache_path": "engines"}], "CUDAExecutionProvider"]
    for lacking in (0, 1, 2):
        monkeypatch.setattr(onnxruntime, "get_available_providers", partial(list, gpu[lacking:]))
        with pytest.raises(AskedError):
            ServedModel(tmp_path / "m.onnx", providers=wanted)
        names = [given if isinstance(given, str) else given[0] for given in asked["providers"]]
        assert names == gpu[lacking:]
        if not lacking:
            assert asked["providers"][0][1] == {"trt_engine_cache_path": str(tmp_path / "engines")}


def test_a_provider_that_does_not_load_leaves_the_others_their_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where TensorRT's libraries are lacking ONNX Runtime goes on with the others' names alone (seen with 1.31.1)."""
    onnxruntime = pytest.importorskip("onnxruntime")
    again = []

    class Session:
        def __init__(self, path: str, **_: Any) -> None:
            pass

        def get_providers(self) -> list[str]:
            return ["CUDAExecutionProvider", "CPUExecutionProvider"]

        def set_providers(self, providers: list[Any]) -> None:
            again.extend(providers)

        def get_inputs(self) -> list[Any]:
            return []

        get_outputs = get_inputs

    available = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    for wanted in (served_as("tensorrt").providers("fp16", None), ["CUDAExecutionProvider"]):
        with pytest.raises(ValueError, match="no output begins with the batch"):
            ServedModel(tmp_path / "m.onnx", providers=wanted, memory_bytes=2**30)
    (name, options), last = again
    assert (name, options["gpu_mem_limit"], last) == (
        "CUDAExecutionProvider",
        str(2**30),
        "CPUExecutionProvider",
    )


def test_kserve_takes_engines_from_the_folder_of_their_gpu() -> None:
    given = deployment([planned(), planned(id="resnet50-1", gpu_id="T4-0", gpu_type="T4")])
    services = list(yaml.safe_load_all(KServeExporter().files(given)[0].text))
    models = [service["spec"]["predictor"]["model"] for service in services]
    assert {model["modelFormat"]["name"] for model in models} == {"tensorrt"}
    assert {model["storageUri"].rsplit("/", 2)[-1] for model in models} == {"V100-SXM2-16GB", "T4"}
    assert "found T4, V100-SXM2-16GB" in " ".join(ModelMeshExporter().notices(given))
    named = " ".join(KServeExporter().notices(deployment([planned("onnxruntime_tensorrt")])))
    assert "names no accelerator" in named and "how long that takes is not known" in named
