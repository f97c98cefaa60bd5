"""Write what other exporters and tools make: quantised files, optimised ones, scikit-learn, LightGBM, JAX."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import _outsider_networks as networks
import _outsider_transformers as transformers
import numpy as np
import onnx
import torch
from _outsiders_language import MASKED, words
from _outsiders_shared import CLASSIC, Truth, export, export_images, outsider

# --- ONNX Runtime's tools -----------------------------------------------------------------------------------------


@outsider("mobilenet_qdq")
def mobilenet_qdq(path: Path) -> Truth:
    """Write MobileNetV2 quantised to eight bits after calibration, as pairs around the operators."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        """Give four random images."""

        def __init__(self) -> None:
            self.left = 4

        def get_next(self) -> dict[str, np.ndarray] | None:
            self.left -= 1
            image = np.random.default_rng(self.left + 1).random((1, 3, 224, 224), dtype=np.float32)
            return {"input": image} if self.left >= 0 else None

    whole = path.with_name("mobilenet_whole.onnx")
    truth = export_images(networks.torchvision_model("mobilenet_v2"), whole, exporter=CLASSIC, opset=17)
    quant_pre_process(str(whole), str(whole))
    quantize_static(str(whole), str(path), Reader(), quant_format=QuantFormat.QDQ, per_channel=True)
    whole.unlink()
    return replace(truth, exporter="onnxruntime quantize_static (QDQ)")


def _bert(path: Path) -> Truth:
    return export(
        transformers.bert(),
        [words(), torch.ones(2, 16, dtype=torch.int64)],
        path,
        exporter=CLASSIC,
        names=["input_ids", "attention_mask"],
        outputs=["last_hidden_state"],
        dynamic=MASKED,
        batch="batch_size",
        dims={"sequence_length": 128},
        counted=[words(1, 128), torch.ones(1, 128, dtype=torch.int64)],
        opset=14,
    )


@outsider("bert_dynamic_int8")
def bert_dynamic_int8(path: Path) -> Truth:
    """Write a BERT whose weights are eight bits and whose activations are quantised as it runs."""
    from onnxruntime.quantization import quantize_dynamic

    whole = path.with_name("bert_whole.onnx")
    truth = _bert(whole)
    quantize_dynamic(str(whole), str(path))
    whole.unlink()
    return replace(truth, exporter="onnxruntime quantize_dynamic")


@outsider("bert_optimised_fp16")
def bert_optimised_fp16(path: Path) -> Truth:
    """Write a BERT with ONNX Runtime's fused operators, in fp16."""
    from onnxruntime.transformers import optimizer

    whole = path.with_name("bert_whole2.onnx")
    truth = _bert(whole)
    optimised = optimizer.optimize_model(str(whole), model_type="bert", num_heads=6, hidden_size=384)
    optimised.convert_float_to_float16(keep_io_types=False)
    optimised.save_model_to_file(str(path))
    whole.unlink()
    return replace(truth, exporter="onnxruntime.transformers.optimizer")


# --- scikit-learn and its like ------------------------------------------------------------------------------------


def _table(rows: int = 400, columns: int = 20) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.random((rows, columns), dtype=np.float32)
    return x, (x[:, 0] + x[:, 1] > 1).astype(np.int64)


def _sklearn(path: Path, model: Any, *, converter: str = "skl2onnx") -> Truth:
    from skl2onnx import to_onnx

    x, _ = _table()
    path.write_bytes(to_onnx(model, x[:1], target_opset={"": 17, "ai.onnx.ml": 3}).SerializeToString())
    return Truth(exporter=converter, batch="anonymous")


@outsider("sklearn_pipeline")
def sklearn_pipeline(path: Path) -> Truth:
    """Write scaling, principal components and logistic regression."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return _sklearn(path, make_pipeline(StandardScaler(), PCA(8), LogisticRegression()).fit(*_table()))


@outsider("sklearn_forest")
def sklearn_forest(path: Path) -> Truth:
    """Write a random forest."""
    from sklearn.ensemble import RandomForestClassifier

    return _sklearn(path, RandomForestClassifier(50, random_state=0).fit(*_table()))


@outsider("lightgbm")
def lightgbm(path: Path) -> Truth:
    """Write gradient-boosted trees."""
    from lightgbm import LGBMClassifier
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    model = LGBMClassifier(n_estimators=30, verbose=-1).fit(*_table())
    written = convert_lightgbm(model, initial_types=[("input", FloatTensorType([None, 20]))], target_opset=15)
    path.write_bytes(written.SerializeToString())
    return Truth(exporter="onnxmltools (LightGBM)", batch="anonymous")


# --- JAX ----------------------------------------------------------------------------------------------------------


@outsider("flax_cnn")
def flax_cnn(path: Path) -> Truth:
    """Write a network of Flax; images come with channels last."""
    import jax
    from flax import nnx
    from jax2onnx import to_onnx

    class Net(nnx.Module):
        """Classify digits."""

        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Conv(1, 32, (3, 3), rngs=rngs)
            self.second = nnx.Conv(32, 64, (3, 3), strides=2, rngs=rngs)
            self.inner = nnx.Linear(14 * 14 * 64, 256, rngs=rngs)
            self.out = nnx.Linear(256, 10, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = nnx.relu(self.second(nnx.relu(self.first(x))))
            return self.out(nnx.relu(self.inner(x.reshape(x.shape[0], -1))))

    net = Net(nnx.Rngs(0))
    model = to_onnx(net, [("B", 28, 28, 1)])
    onnx.save(model, path)
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(net, nnx.Param)))
    return Truth(exporter="jax2onnx", batch="B", parameters=count)
