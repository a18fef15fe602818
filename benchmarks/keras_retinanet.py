"""The peers of `retinanet.py` in Keras: KerasHub's RetinaNet with TensorFlow or JAX beneath.

    KERAS_PYTHON benchmarks/keras_retinanet.py INPUTS.npz --backend tensorflow --threads 2

It needs keras-hub with one of the two and nothing of this project; `retinanet.py` starts it and
writes the inputs. The detector is built from KerasHub's classes with their own defaults and fresh
weights: no norm in heads and pyramid, its own matching, focal loss and Huber. Batch norm of the
backbone goes by the batch's statistics.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from answering import product_speed, serve

MOMENTUM = 0.9
# A rate so small that nothing can diverge: what the weights are is not measured.
RATE = 1e-6
NAMES = {"tensorflow": "TensorFlow", "jax": "JAX"}
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
# ImageNet's, which KerasHub's preprocessor takes off. Here it is done once, before all steps.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Peer:
    """The detector in training.

    Args:
        keras: the module.
        arrays: the batch: `images` `[B, H, W, 3]` in 0..255, `boxes` `[B, N, 4]` in 0..1 as
            `[ymin, xmin, ymax, xmax]`, `labels` `[B, N]`, the slot of each box, and `slots`, how
            many of them there are.
        precision: of the convolutions, by the policy.
    """

    def __init__(self, keras: Any, arrays: dict[str, np.ndarray], precision: str) -> None:  # noqa: ANN401
        keras.config.set_dtype_policy(POLICIES[precision])
        keras.utils.set_random_seed(0)
        height, width = arrays["images"].shape[1:3]
        self._keras = keras
        self._detector = _detector((height, width, 3), int(arrays["slots"]))
        self._detector.compile(
            optimizer=keras.optimizers.SGD(RATE, MOMENTUM),
            # By itself Keras takes XLA for TensorFlow too, which on a CPU needs twice as long.
            jit_compile=keras.backend.backend() == "jax",
        )
        images = ((arrays["images"] / 255 - MEAN) / STD).astype(np.float32)
        boxes = arrays["boxes"] * np.asarray([height, width, height, width], np.float32)
        truths = {"boxes": boxes, "labels": arrays["labels"].astype(np.float32)}
        self._batch = [
            keras.tree.map_structure(keras.ops.convert_to_tensor, x) for x in (images, truths)
        ]
        trained = self._detector.trainable_variables
        self.described = {
            "name": f"KerasHub RetinaNet, {NAMES[keras.backend.backend()]}",
            "precision": precision,
            "parameters": sum(int(np.prod(variable.shape)) for variable in trained),
            "counted": ["forward"],
            "forward": self._count(),
        }

    def _count(self) -> int:
        """Returns the FLOPs of all convolutions for one image; a multiply-add is two."""
        convolution, counted = self._keras.layers.Conv2D.convolution_op, 0

        def count(layer: Any, inputs: Any, kernel: Any) -> Any:  # noqa: ANN401
            nonlocal counted
            outputs = convolution(layer, inputs, kernel)
            counted += 2 * int(np.prod(outputs.shape)) * int(np.prod(kernel.shape[:3]))
            return outputs

        with mock.patch.object(self._keras.layers.Conv2D, "convolution_op", count):
            self._detector(self._batch[0][:1], training=False)
        return counted

    def step(self) -> float:
        """Takes a step and returns its seconds."""
        began = time.perf_counter()
        # KerasHub's own method takes no dictionary of truths. This is the one that it calls, and
        # the loss comes back as a number: all is done.
        self._keras.Model.train_on_batch(self._detector, *self._batch)
        return time.perf_counter() - began


def _detector(shape: tuple[int, int, int], slots: int) -> Any:  # noqa: ANN401
    import keras_hub

    resnet50 = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128, 256, 512],
        stackwise_num_blocks=[3, 4, 6, 3],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="bottleneck_block",
        image_shape=shape,
    )
    # P6 from the pyramid's P5, as ours and torchvision's; `use_p5` would take the backbone's.
    pyramid = keras_hub.models.RetinaNetBackbone(
        resnet50, min_level=3, max_level=7, use_p5=False, image_shape=shape
    )
    return keras_hub.models.RetinaNetObjectDetector(pyramid, num_classes=slots)


def _matrix_product(keras: Any, precision: str, side: int) -> Callable[[], object]:  # noqa: ANN401
    matrix = keras.ops.ones((side, side), precision)
    # To fetch a number is to wait for it.
    return lambda: float(keras.ops.matmul(matrix, matrix)[0, 0])


def main() -> None:
    """Describes the peers, then answers line by line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("inputs", help="npz with the batch")
    parser.add_argument("--backend", choices=tuple(NAMES), required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--precisions", nargs="+", default=list(POLICIES))
    arguments = parser.parse_args()
    keras, versions = _import_keras(arguments.backend, arguments.threads)
    with np.load(arguments.inputs) as stored:
        arrays = dict(stored)
    peers = [Peer(keras, arrays, precision) for precision in arguments.precisions]
    products: dict[str, Callable[[], float]] = {}
    # What JAX makes of a product, our own process measures.
    if arguments.backend == "tensorflow":
        products = {
            f"TensorFlow {p}": partial(product_speed, partial(_matrix_product, keras, p))
            for p in arguments.precisions
        }
    described = {
        "versions": versions,
        "peers": [peer.described for peer in peers],
        "products": list(products),
    }
    steps = {f"{p.described['name']} {p.described['precision']}": p.step for p in peers}
    serve(described, products | steps)


def _import_keras(backend: str, threads: int) -> tuple[Any, dict[str, str]]:
    """Imports Keras on the CPU and returns it with all versions."""
    os.environ |= {
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if backend == "tensorflow":
        import tensorflow as engine

        engine.config.threading.set_intra_op_parallelism_threads(threads)
    else:
        # XLA takes as many threads as there are cores for this process.
        import jax as engine
    import keras
    import keras_hub

    versions = {module.__name__: module.__version__ for module in (keras_hub, keras, engine)}
    return keras, versions


if __name__ == "__main__":
    main()
