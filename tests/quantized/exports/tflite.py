"""TensorFlow Lite's int8, converted by tf2onnx: tensors in NHWC, with values or codes as inputs and
outputs.

    python -m tests.quantized.exports.tflite

Needs tensorflow-cpu and tf2onnx. Names of its nodes differ each time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.quantized.exports import store

SHAPES = {"cnn": (2, 16, 16, 8), "mlp": store.SHAPES["mlp"]}
layers = tf.keras.layers


def cnn() -> tf.keras.Model:
    """A stem, a depthwise convolution in a residual, a Concat, pooling and a classifier."""
    x = layers.Input(SHAPES["cnn"][1:], batch_size=SHAPES["cnn"][0])
    stem = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(x)
    deep = layers.DepthwiseConv2D(3, padding="same", activation="relu6")(stem)
    block = layers.Add()([stem, layers.Conv2D(16, 1)(deep)])
    both = layers.Concatenate()([block, layers.Conv2D(16, 1, activation="relu")(block)])
    mean = layers.GlobalAveragePooling2D()(layers.MaxPool2D(2)(both))
    return tf.keras.Model(x, layers.Dense(16)(mean))


def mlp() -> tf.keras.Model:
    """Three linear layers."""
    x = layers.Input(SHAPES["mlp"][1:], batch_size=SHAPES["mlp"][0])
    first = layers.Dense(32, activation="relu")(x)
    return tf.keras.Model(x, layers.Dense(16)(layers.Dense(32, activation="sigmoid")(first)))


def converted(name: str, model: tf.keras.Model, codes: bool) -> bytes:
    """The model of int8; with `codes` its inputs and outputs are int8, too."""

    def samples() -> Iterator[list[np.ndarray]]:
        rng = np.random.default_rng(0)
        for _ in range(4):
            yield [rng.standard_normal(SHAPES[name]).astype(np.float32)]

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = samples
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    if codes:
        converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def main() -> None:
    for name, build in {"cnn": cnn, "mlp": mlp}.items():
        tf.keras.utils.set_random_seed(0)
        model = build()
        for form in ("values", "codes"):
            with tempfile.TemporaryDirectory() as folder:
                source, made = Path(folder, "model.tflite"), Path(folder, "model.onnx")
                source.write_bytes(converted(name, model, form == "codes"))
                convert = [sys.executable, "-m", "tf2onnx.convert", "--opset", "17"]
                paths = ["--tflite", str(source), "--output", str(made)]
                subprocess.run([*convert, *paths], check=True)
                store.write(made, f"{name}.tflite.{form}")
    store.tell("tflite", "tensorflow-cpu", "tf2onnx", "onnx")


if __name__ == "__main__":
    main()
