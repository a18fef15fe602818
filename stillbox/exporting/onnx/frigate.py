"""The outputs that Frigate's detectors read: one array, a row of seven numbers for a detection.

Read in Frigate 0.16 to 0.18 (`frigate/detectors/plugins/openvino.py`, `onnx.py`). `model_type: ssd`
of the OpenVINO detector is `[1, 1, K, 7]`: image, class, score, xmin, ymin, xmax, ymax in 0..1.
`model_type: yolonas` of the ONNX detector is `[K, 7]`: image, xmin, ymin, xmax, ymax in pixels,
score, class; a class below 0 ends the list. Both take the first 20 rows.
"""

from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.exporting.program import ExportProgram, Outputs

OUTPUT, LABELS, CONFIG = "detections", "labelmap.txt", "frigate.yml"
_DETECTORS = {"frigate_ssd": "openvino", "frigate_yolonas": "onnx"}
_CONFIG = """\
detectors:
  stillbox:
    type: {detector}{device}
model:
  path: /config/{file}
  labelmap_path: /config/{labels}
  model_type: {model_type}
  width: {width}
  height: {height}
  input_tensor: nhwc
  input_pixel_format: rgb
  input_dtype: int
"""


def rows_of(layout: str, outputs: Outputs, size: tuple[int, int]) -> jax.Array:
    """Returns the rows `[B, K, 7]` for the outputs of the signature `detection_api`.

    Args:
        layout: one of `settings.FRIGATE`.
        outputs: boxes in 0..1, classes, scores and count.
        size: height and width of the input images in pixels.
    """
    boxes, scores = outputs["detection_boxes"], outputs["detection_scores"]
    real = jnp.arange(scores.shape[1])[None] < outputs["num_detections"][:, None]
    corners = boxes[..., jnp.array([1, 0, 3, 2])]
    if layout == "frigate_ssd":
        image = jnp.where(real, 0.0, -1.0)
        columns = [image[..., None], outputs["detection_classes"][..., None], scores[..., None]]
        return jnp.concatenate([*columns, corners], axis=-1)
    corners = corners * jnp.array([size[1], size[0]] * 2, jnp.float32)
    classes = jnp.where(real, outputs["detection_classes"], -1.0)
    image = jnp.zeros_like(scores)[..., None]
    return jnp.concatenate([image, corners, scores[..., None], classes[..., None]], axis=-1)


def shape_of(layout: str, most: int) -> tuple[int, ...]:
    """Returns the shape of the output for so many detections."""
    return (1, 1, most, 7) if layout == "frigate_ssd" else (most, 7)


def outputs_of(layout: str, rows: np.ndarray, size: tuple[int, int]) -> Mapping[str, np.ndarray]:
    """Returns the outputs of the signature for the array that Frigate reads; see `rows_of`."""
    rows = rows.reshape(1, -1, 7)
    if layout == "frigate_ssd":
        image, classes, scores, corners = np.split(rows, [1, 2, 3], axis=-1)
        real = image[..., 0] >= 0
    else:
        _, corners, scores, classes = np.split(rows, [1, 5, 6], axis=-1)
        corners = corners / np.array([size[1], size[0]] * 2, np.float32)
        real = classes[..., 0] >= 0
    return {
        "detection_boxes": corners[..., [1, 0, 3, 2]],
        "detection_scores": scores[..., 0],
        "detection_classes": classes[..., 0],
        "num_detections": real.sum(axis=1),
    }


def write_beside(program: ExportProgram, folder: Path, file: str) -> dict[str, str]:
    """Writes Frigate's label map and lines of its configuration; returns what each is."""
    layout = program.settings.postprocess
    label_map = program.model.label_map
    assert label_map is not None  # the program uses its class slots
    lines = [f"{item.id}  {item.display_name or item.name}\n" for item in label_map.items]
    (folder / LABELS).write_text("".join(lines), encoding="utf-8")
    height, width = program.input_size
    detector = _DETECTORS[layout]
    text = _CONFIG.format(
        detector=detector,
        device="\n    device: CPU" * (detector == "openvino"),
        file=file,
        labels=LABELS,
        model_type=layout.removeprefix("frigate_"),
        width=width,
        height=height,
    )
    (folder / CONFIG).write_text(text, encoding="utf-8")
    return {LABELS: "the classes for Frigate", CONFIG: "lines for Frigate's configuration"}
