"""The readers of foreign files, each with sound files to start from.

`read(data, folder)` puts the bytes where the reader expects a file and uses what it returns as the
commands do. It may raise `UserError` and nothing else, within a second and with little memory.
Where a checksum would stop every changed byte, the reader under test is given right ones.
"""

import base64
import gzip
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest import mock

import cv2
import numpy as np
from PIL import Image
from safetensors.numpy import save

from stillbox.checkpoints import tf1
from stillbox.checkpoints.checkpoint import Checkpoint, write_checkpoint
from stillbox.checkpoints.files import Checksums
from stillbox.checkpoints.graphs.matching import match_weights
from stillbox.checkpoints.packed import PackedModel, array_digest
from stillbox.checkpoints.tf1 import write_tf1_checkpoint
from stillbox.checkpoints.tf2 import OBJECT_GRAPH, VARIABLE, serialize_object_graph
from stillbox.checkpoints.weights_file import open_weights
from stillbox.evaluation.coco import results_from_coco_json
from stillbox.evaluation.ground_truth import read_annotations
from stillbox.evaluation.history import read_history
from stillbox.evaluation.runtimes import RuntimeRow, RuntimeTable, read_runtimes, runtime_section
from stillbox.experiment.recipes import recipe_path
from stillbox.experiment.resolve import resolve
from stillbox.experiment.schema import Model
from stillbox.exporting.manifest import Manifest
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.tflite.metadata import LABEL_IDS, label_ids
from stillbox.inputs.decode import ImageError
from stillbox.inputs.sample import StoredImage
from stillbox.predicting.images import read_image
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.conversion import ConversionJob, ConversionOptions, convert_image
from stillbox.records.data_folder import DataFolder
from stillbox.records.example import Example
from stillbox.records.folder_content import report_unread
from stillbox.records.formats.coco import read_coco
from stillbox.records.formats.registry import recognise
from stillbox.records.formats.voc import read_image_set, read_voc
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import ConversionLog
from stillbox.records.review import review
from stillbox.records.source import ExampleSource
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import frame
from stillbox.records.wire import bytes_field, varint_field
from tools.fuzz.graphs import tfjs_seeds, tfjs_shards, tflite_seeds

_LABELS = LabelMap.from_names(["dog", "cat"])
_ARRAYS: dict[str, np.ndarray] = {
    "a/kernel": np.ones((3, 2), np.float32),
    "a/bias": np.zeros(2, np.float16),
}


@dataclass(frozen=True)
class Reader:
    """One kind of file."""

    read: Callable[[bytes, Path], object]
    seeds: Callable[[Path], Sequence[bytes]]
    """Returns sound files; an empty folder is given to write in."""


def _put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# Configurations.


def _config(name: str) -> Callable[[bytes, Path], object]:
    return lambda data, folder: resolve(_put(folder, name, data))


def _recipe(name: str) -> bytes:
    return recipe_path(name).read_bytes()


_PIPELINE = b"""model { ssd {
  num_classes: 3
  image_resizer { fixed_shape_resizer { height: 300 width: 300 } }
  feature_extractor { type: "ssd_mobilenet_v1" depth_multiplier: 0.5 conv_hyperparams {
    activation: RELU_6 regularizer { l2_regularizer { weight: 2e-5 } }
    initializer { truncated_normal_initializer { stddev: .03 } } batch_norm { decay: 0.99 } } }
  box_coder { faster_rcnn_box_coder { y_scale: 10 x_scale: 10 height_scale: 5 width_scale: 5 } }
  matcher { argmax_matcher { matched_threshold: 0.5 unmatched_threshold: 0.5 } }
  similarity_calculator { iou_similarity {} }
  anchor_generator { ssd_anchor_generator { num_layers: 6 aspect_ratios: [1.0, 2.0, 0.5] } }
  box_predictor { convolutional_box_predictor { kernel_size: 1 conv_hyperparams {
    regularizer { l2_regularizer {} } initializer { truncated_normal_initializer {} } } } }
  loss { classification_loss { weighted_sigmoid {} } localization_loss { weighted_smooth_l1 {} }
    hard_example_miner { num_hard_examples: 3000 iou_threshold: 0.99 loss_type: CLASSIFICATION } }
  post_processing { batch_non_max_suppression { score_threshold: 1e-8 iou_threshold: 0.6
    max_detections_per_class: 100 max_total_detections: 100 } score_converter: SIGMOID } } }
train_config { batch_size: 24 num_steps: 200000
  data_augmentation_options { random_horizontal_flip {} }
  optimizer { rms_prop_optimizer { learning_rate { exponential_decay_learning_rate {
    initial_learning_rate: 0.004 decay_steps: 800720 decay_factor: 0.95 } }
    momentum_optimizer_value: 0.9 decay: 0.9 epsilon: 1.0 } } }
train_input_reader { tf_record_input_reader { input_path: "train.record" } label_map_path: "a" }
eval_config { num_examples: 8000 }
eval_input_reader { tf_record_input_reader { input_path: 'val.record' } label_map_path: "a" }
"""
_PARAMS = b"""type: retinanet
architecture: {backbone: resnet, num_classes: 91, min_level: 3, max_level: 7}
anchor: {num_scales: 3, aspect_ratios: [1.0, 2.0, 0.5], anchor_size: 4.0}
train: {total_steps: 22500, train_batch_size: 64, learning_rate: {type: step,
  init_learning_rate: 0.08, learning_rate_levels: [0.008, 0.0008],
  learning_rate_steps: [15000, 20000]}}
retinanet_parser: {output_size: [640, 640], aug_scale_min: 0.8, aug_scale_max: 1.2}
"""
_LABEL_MAP = b"""# classes
item { id: 1 name: 'dog' display_name: "D\\303\\266g" }
item: < id: 0x2, name: "cat" 'fish' keypoints { id: 3 } frequency: COMMON ancestor_ids: [1, 2] >
"""

# Records.


def _example(folder: Path) -> Example:
    encoded = cv2.imencode(".jpg", np.full((8, 6, 3), 90, np.uint8))[1].tobytes()
    return Example(
        image_id="1", encoded=encoded, filename="a.jpg", height=8, width=6,
        boxes=np.array([[0.1, 0.2, 0.5, 0.6]], np.float32), class_ids=np.array([2], np.int32),
        area=np.array([3], np.float32),
    )  # fmt: skip


def _records(data: bytes, folder: Path) -> None:
    path = _put(folder, "x.record", data)
    # The folder of every input is the same, and so may be its time and size.
    for index in (*folder.glob(".*.index"), *folder.glob("stillbox/**/*.*")):
        index.unlink()
    source = ExampleSource([str(path)], _LABELS, bad_records="drop")
    for number in range(len(source)):
        source.example(number)


def _one_record(data: bytes, folder: Path) -> None:
    _records(frame(data), folder)
    source = ExampleSource([str(folder / "x.record")], None)
    source.example(0)


def _record_seeds(folder: Path) -> Sequence[bytes]:
    record = frame(serialize_example(_example(folder), _LABELS))
    return [record * 2, gzip.compress(record), frame(b"") + record]


# Annotations.


def _converted(annotated: Sequence[AnnotatedImage], labels: LabelMap) -> None:
    job = ConversionJob(
        label_map=labels, options=ConversionOptions(), bad_records="drop", bad_boxes="fix"
    )
    for item in annotated:
        convert_image(job, item)
    labels.to_text()


def _with_photo(folder: Path) -> Path:
    photo = folder / "images" / "a.jpg"
    return photo if photo.exists() else _put(folder, "images/a.jpg", _example(folder).encoded)


def _coco(data: bytes, folder: Path) -> None:
    photo, path = _with_photo(folder), _put(folder, "x.json", data)
    for renumber in (False, True):
        _converted(*read_coco(path, photo.parent, ConversionLog(), renumber=renumber))


_COCO = {
    "images": [{"id": 1, "file_name": "a.jpg", "height": 8, "width": 6}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 2, "bbox": [1, 1, 2.5, 3], "area": 7.5,
         "iscrowd": 0, "segmentation": [[1, 1, 3, 1, 3, 4]]},
        {"id": 2, "image_id": 1, "category_id": 18, "bbox": [0, 0, 6, 8], "iscrowd": 1,
         "segmentation": {"counts": [4, 9], "size": [8, 6]}},
    ],
    "categories": [{"id": 2, "name": "cat"}, {"id": 18, "name": "dog"}],
}  # fmt: skip
_RESULTS = [{"image_id": 1, "category_id": 2, "bbox": [1, 1, 2.5, 3], "score": 0.5}]
_VOC = b"""<?xml version="1.0" encoding="UTF-8"?>
<annotation><folder>images</folder><filename>a.jpg</filename>
<size><width>6</width><height>8</height><depth>3</depth></size><segmented>0</segmented>
<object><name>dog&#33;</name><pose>Left</pose><truncated>1</truncated><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>1.5</ymin><xmax>5</xmax><ymax>7</ymax></bndbox>
<part><name>head</name></part></object><object><name>cat</name></object></annotation>
"""


def _ground_truth(data: bytes, folder: Path) -> None:
    truth = read_annotations(str(_put(folder, "x.json", data)))
    for image_id, image in truth.truths.items():
        truth.truth_of(image_id, (image.height, image.width)).areas()


def _voc(data: bytes, folder: Path) -> None:
    photo, path = _with_photo(folder), _put(folder, "xml/a.xml", data)
    _converted(*read_voc(path.parent, photo.parent, ConversionLog()))


def _image_set(data: bytes, folder: Path) -> None:
    _put(folder, "ImageSets/Main/x.txt", data)
    _put(folder, "xml/a.xml", _VOC)
    read_voc(
        folder / "xml",
        _with_photo(folder).parent,
        ConversionLog(),
        stems=read_image_set(folder, "x"),
    )


_CVAT = b"""<?xml version="1.0" encoding="utf-8"?><annotations><version>1.1</version>
<meta><job><labels><label><name>dog</name></label></labels></job></meta>
<image id="0" name="a.jpg" subset="Train" width="6" height="8">
<box label="dog" xtl="1" ytl="1" xbr="4.5" ybr="5" rotation="30"/>
<polygon label="dog" points="1,1;2,3;4.5,2"/><ellipse label="dog" cx="3" cy="3" rx="1" ry="2"/>
<mask label="dog" left="1" top="1" width="3" height="2" rle="3,3"/><tag label="dog"/></image>
</annotations>
"""
_YOLO = b"0 0.5 0.5 0.2 0.3\n1 .1 0.1 0.5 0.1 4e-1 0.6\n\n"
_YOLO_YAML = b"path: .\ntrain: .\nval: [list.txt]\nnc: 2\nnames: {0: dog, 1: 'cat'}\n"
_LIST = {"list.txt": b"/content/set/a.jpg\n"}
_PIXEL = cv2.imencode(".png", np.zeros((1, 1, 3), np.uint8))[1].tobytes()
_LABELME = {
    "imagePath": "a.jpg", "imageHeight": 8, "imageWidth": 6,
    "shapes": [
        {"label": "dog", "shape_type": "rectangle", "points": [[1, 1], [3, 4.5]]},
        {"label": "cat", "shape_type": "circle", "points": [[3, 3], [3, 4]]},
        {"label": "cat", "points": [[3, 3], [3, 4], [5, 5]]},
    ],
}  # fmt: skip
_EMBEDDED = _LABELME | {"imagePath": "no.png", "imageData": base64.b64encode(_PIXEL).decode()}
_SHAPE = {"original_width": 6, "original_height": 8}
_LABEL_STUDIO = [
    {"id": 1, "data": {"image": "/data/upload/1/0123abcd-a.jpg"}, "annotations": [{"result": [
        _SHAPE | {"value": {"x": 10, "y": 20.5, "width": 30, "height": 40, "rotation": 30,
            "rectanglelabels": ["dog"]}},
        _SHAPE | {"value": {"points": [[1, 2], [30, 40], [5, 90]], "polygonlabels": ["cat"]}},
        _SHAPE | {"value": {"x": 50, "y": 50, "radiusX": 9, "radiusY": 5, "labels": ["cat"]}},
    ]}]},
]  # fmt: skip
_OPEN_IMAGES = (
    b"ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsTruncated,IsGroupOf\n"
    b"a,x,/m/0bt9lr,1,0.1,0.5,0.2,0.6,0,1\na,x,/m/01yrx,0,0.1,0.5,0.2,0.6,1,0\n"
)
_VOC_CSV = b"filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,6,8,dog,1,1,3,4.5\n"
_HUGGING_FACE = (
    b'{"file_name": "a.jpg", "objects": {"bbox": [[1, 1, 2, 3]], "category": [0]}}\n'
    b'{"file_name": "a.jpg", "objects": [{"bbox": [1, 1, 2, 3], "label": "cat"}]}\n'
)
_CARD = b"""---
dataset_info:
  features:
  - name: objects
    sequence:
    - {name: category, dtype: {class_label: {names: {'0': dog, '1': cat}}}}
---
"""


def _folder(
    name: str, beside: Mapping[str, bytes] | None = None
) -> Callable[[bytes, Path], object]:
    """Returns a reader of a folder with a photograph, the data under a name, and other files."""

    def read(data: bytes, folder: Path) -> None:
        root = folder / "folder"
        _put(root, "a.jpg", _with_photo(folder).read_bytes())
        for other, content in (beside or {}).items():
            _put(root, other, content)
        _put(root, name, data)
        contents, log = DataFolder(root), ConversionLog()
        recognised = recognise(contents)
        assert recognised.format.read is not None
        reading = recognised.format.read(contents, recognised.files, log)
        report_unread(contents, recognised, {image.split for image in reading.images}, log)
        stated, label_map = reading.with_ids()
        items = [reviewed.item for reviewed in review(stated, contents, reading.numbers, log)]
        _converted(items, label_map)

    return read


# Checkpoints and weights.


class _AnyNumber(int):
    def __ne__(self, other: object) -> bool:
        return False


@contextmanager
def _right_checksums() -> Iterator[None]:
    any_number = mock.Mock(return_value=_AnyNumber(0))
    with (
        mock.patch.object(tf1, "masked_crc32c", any_number),
        mock.patch.object(tf1, "masked_crc32c", any_number),
        mock.patch.object(zipfile.ZipExtFile, "_update_crc", lambda self, data: None),
    ):
        yield


def _weights(
    name: str, beside: Mapping[str, bytes] | None = None
) -> Callable[[bytes, Path], object]:
    def read(data: bytes, folder: Path) -> None:
        for other, content in (beside or {}).items():
            _put(folder, other, content)
        path = _put(folder, name, data)
        with _right_checksums():
            for array in open_weights(path).arrays.values():
                np.array(array)

    return read


def _graph_model(
    name: str, beside: Callable[[], Mapping[str, bytes]] = dict
) -> Callable[[bytes, Path], object]:
    """Returns a reader of weights of a graph, which also looks for the parameters of a model."""

    def read(data: bytes, folder: Path) -> None:
        _weights(name, beside())(data, folder)
        matched = match_weights(open_weights(folder / name), _demo_model(), ())
        for array in matched.arrays.values():
            np.array(array)

    return read


@cache
def _demo_model() -> Model:
    return resolve("demo_scenes").experiment.model


def _member(name: str, root: str, beside: str = "") -> Callable[[bytes, Path], object]:
    """Returns a reader of archives with the data as a member, beside one of 64 zeros or none."""

    def read(data: bytes, folder: Path) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(root, data)
            if beside:
                archive.writestr(beside, bytes(64))
        _weights(name)(buffer.getvalue(), folder)

    return read


def _tf1_files(folder: Path) -> tuple[bytes, bytes]:
    write_tf1_checkpoint(folder / "w", _ARRAYS)
    (data,) = folder.glob("w.data-*")
    return data.read_bytes(), (folder / "w.index").read_bytes()


def _object_graph(data: bytes, folder: Path) -> None:
    """Reads the data as the object graph of a checkpoint with one variable."""
    write_tf1_checkpoint(folder / "g", {OBJECT_GRAPH: data, f"a/0{VARIABLE}": np.ones(2)})
    weights = open_weights(folder / "g")
    for path in ("a/0", "a", "b/kernel", "", "a/0/0", *weights.arrays):
        variable = weights.find(path)
        if variable in weights.arrays:
            _ = weights.arrays[variable]


def _graphs(folder: Path) -> Sequence[bytes]:
    """A frozen graph, and the same in a SavedModel."""
    axes = bytes_field(2, bytes_field(2, varint_field(1, 2)) * 2)
    content = varint_field(1, 1) + axes + bytes_field(4, _ARRAYS["a/kernel"].tobytes()[:16])
    splat = varint_field(1, 14) + axes + bytes_field(13, b"\x80\x7f\1")
    nodes = b""
    for name, tensor in ((b"a/kernel", content), (b"a/bias", splat)):
        value = bytes_field(1, b"value") + bytes_field(2, bytes_field(8, tensor))
        node = bytes_field(1, name) + bytes_field(2, b"Const") + bytes_field(5, value)
        nodes += bytes_field(1, node)
    return [nodes, varint_field(1, 1) + bytes_field(2, bytes_field(2, nodes))]


def _npz(folder: Path) -> Sequence[bytes]:
    np.savez(folder / "w.npz", **_ARRAYS)  # type: ignore[arg-type]
    np.savez_compressed(folder / "c.npz", **_ARRAYS)  # type: ignore[arg-type]
    return [(folder / "w.npz").read_bytes(), (folder / "c.npz").read_bytes()]


def _npy(folder: Path) -> Sequence[bytes]:
    seeds = []
    columns = np.asfortranarray(np.eye(3))
    for array in (*_ARRAYS.values(), np.zeros((2, 0)), columns, np.array("a")):
        buffer = io.BytesIO()
        np.save(buffer, array)
        seeds.append(buffer.getvalue())
    return seeds


def _safetensors(folder: Path) -> Sequence[bytes]:
    return [save(_ARRAYS), save({"x": np.zeros((), np.int64)}, {"format": "pt"})]


def _packed(folder: Path) -> Sequence[bytes]:
    texts = {
        "stillbox": "1",
        "step": "3",
        "experiment": _recipe("demo_scenes").decode(),
        "label_map": "item { id: 1 name: 'a' }",
        "sha256": array_digest(_ARRAYS),
    }
    return [save(_ARRAYS, texts), save({}, texts)]


def _read_packed(data: bytes, folder: Path) -> None:
    model = PackedModel(_put(folder, "w.stillbox", data))
    model.read_experiment()
    LabelMap.from_text(model.label_map, "w.stillbox")
    model.parameters()


_TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n"
    b"X\x01\0\0\x000X\x03\0\0\0cpuK\x10tQK\0K\x03K\x02\x86q\x01K\x02K\x01\x86\x89"
    b"ccollections\nOrderedDict\n)RtR"
)
_STATE = b"ccollections\nOrderedDict\n)R(X\x06\0\0\0weight" + _TENSOR + b"u."
_PICKLES = (
    b"\x80\x02" + _STATE,
    b"\x80\x02}q\0(X\x05\0\0\0modelh\0X\x05\0\0\0epochK\x03X\x05\0\0\0state" + _STATE[:-1] + b"u.",
    b"\x80\x02]q\0(K\1M\2\1J\3\1\1\1\x8a\x01\4G?\xf0\0\0\0\0\0\0Nh\0e.",
)
_HEADS = (
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
    b"\x80\x02}(X\x0d\0\0\0little_endian\x88u."
)
_SEQUENCE = _HEADS + _PICKLES[0] + b"\x80\x02]X\x01\0\0\x000a.\x10" + bytes(7 + 64)


def _tar(folder: Path) -> bytes:
    import tarfile

    members = {
        "storages": b"\x80\x02K\1.\x80\x02(K\1X\3\0\0\0cpuctorch\nFloatStorage\nt.\4" + bytes(23)
        + b"\x80\x02].",
        "tensors": b"\x80\x02K\1.\x80\x02(K\2K\1Nt.\1" + bytes(7) + b"\4" + bytes(7) + b"\1"
        + bytes(15),
        "pickle": b"\x80\x02ccollections\nOrderedDict\n)R(X\1\0\0\0wX\1\0\0\x002Qu.",
    }  # fmt: skip
    with tarfile.open(folder / "w.tar", "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return (folder / "w.tar").read_bytes()


def _zipped_pickle(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("w/data.pkl", _PICKLES[0])
        archive.writestr("w/byteorder", "little")
        archive.writestr("w/data/0", bytes(64))
    return buffer.getvalue()


def _checkpoint(data: bytes, folder: Path) -> None:
    _put(folder, "1/checkpoint.json", data)
    if not (folder / "1/params.npz").exists():
        _put(folder, "1/params.npz", _npz(folder)[0])
    checkpoint = Checkpoint(folder / "1")
    for section in checkpoint.sections:
        checkpoint.read(section)
    _ = checkpoint.metadata, checkpoint.step
    checkpoint.parameters(prefer_ema=True)


def _checkpoint_seeds(folder: Path) -> Sequence[bytes]:
    """A manifest without checksums, as older versions wrote it, and the same with them."""
    write_checkpoint(folder, 3, {"params": _ARRAYS}, {"epoch": 1, "scores": {"AP": 0.5}})
    content = json.loads((folder / "checkpoint.json").read_bytes())
    old = {name: value for name, value in content.items() if name not in ("sha256", "checksums")}
    _put(folder, "present/params.npz", _npz(folder)[0])
    sums = Checksums.of_folder(folder / "present", "checkpoint.json").to_json()
    return [json.dumps(manifest).encode() for manifest in (old, old | {"checksums": sums})]


def _export(data: bytes, folder: Path) -> None:
    _put(folder, "export/model.onnx", b"model")
    _put(folder, "export/export.json", data)
    manifest = Manifest.read(folder / "export")
    manifest.verify()
    _ = manifest.settings.input, manifest.needs.get("jax")


def _export_seeds(folder: Path) -> Sequence[bytes]:
    _put(folder, "model.onnx", b"model")
    Manifest(
        settings=ExportSettings(format="onnx", image_size=(64, 64), max_detections=9),
        files={"model.onnx": "the model"},
        input_size=(64, 64),
        resizer={"kind": "fixed_shape", "height": 64},
        source="runs/owls, step 3",
        needs={"onnxruntime": ">=1.16"},
        known_bad=("onnxruntime<1.16",),
        verified={"detections": 3, "max_box_difference": 0.25},
    ).write(folder)
    new = json.loads((folder / "export.json").read_bytes())
    del new["sha256"]
    old = {name: value for name, value in new.items() if name != "checksums"} | {"version": 1}
    return [json.dumps(manifest).encode() for manifest in (new, old)]


def _label_ids(data: bytes, folder: Path) -> None:
    with _right_checksums():
        label_ids(data, "m.tflite")


def _tflite(folder: Path) -> Sequence[bytes]:
    """What is no model, with the archive behind it."""
    seeds = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO(b"model")
        with zipfile.ZipFile(buffer, "a", method) as archive:
            archive.writestr("labels.txt", b"dog\n???\ncat\n")
            archive.writestr(LABEL_IDS, b"1\n0\n90\n")
        seeds.append(buffer.getvalue())
    return seeds


def _history(data: bytes, folder: Path) -> None:
    history = read_history(_put(folder, "metrics.jsonl", data), lambda line: None)
    for name in ("loss", "AP"):
        history.series(name)
        history.evaluation_series(name)


def _runtimes(data: bytes, folder: Path) -> None:
    table = read_runtimes(_put(folder, "benchmark.json", data))
    table.render()
    runtime_section(table)


def _runtimes_seeds(folder: Path) -> list[bytes]:
    row = RuntimeRow(name="onnx", runtime="onnxruntime 1.31", bytes=9, p50_ms=2.5, compared=3)
    row = replace(row, found=2, box_difference=1e-4, scores={"AP": 0.25, "APs": None})
    failed = RuntimeRow(name="stablehlo", runtime="jax", state="failed", message="it was killed")
    table = RuntimeTable(model="owls", machine={"threads": "2"}, rows=(row, failed), notes=("a",))
    return [table.to_json().encode()]


_HISTORY = b"""{"step": 1, "loss": 2.5, "learning_rate": 1e-3}
{"step": 2, "loss": NaN}
{"step": 2, "evaluation": {"AP": 0.25, "APs": null}}
"""


# Images.


def _image(data: bytes, folder: Path) -> None:
    read_image(data)


def _photo(data: bytes, folder: Path) -> None:
    path = _put(folder, "images/b.jpg", data)
    item = AnnotatedImage(
        path=path, where="x", image_id="b", filename="b.jpg", height=8, width=6,
        pixel_boxes=np.array([[1.0, 1, 5, 5]]), class_ids=np.array([1], np.int32),
    )  # fmt: skip
    _converted([item], _LABELS)


def _stored(data: bytes, folder: Path) -> None:
    image = StoredImage.read(data)
    if image is not None:
        window = image.crop(0, 0, -(-image.size[0] // 3), image.size[1])
        with suppress(ImageError):  # reported with the record
            window.reduced(2)


def _stored_seeds(folder: Path) -> Sequence[bytes]:
    pixels = np.zeros((100, 40, 3), np.uint8)
    options = ((), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1), (cv2.IMWRITE_JPEG_RST_INTERVAL, 1))
    return [cv2.imencode(".jpg", pixels, option)[1].tobytes() for option in options]


def _image_seeds(folder: Path) -> Sequence[bytes]:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (12, 9, 3), dtype=np.uint8)
    seeds = []
    exif = Image.Exif()
    exif[0x0112] = 6
    for mode, kind in (
        *(("RGB", kind) for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")),
        *(("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("I;16", "PNG"), ("1", "PNG")),
    ):
        buffer = io.BytesIO()
        image = Image.fromarray(pixels)
        image = image.convert("I").convert(mode) if mode == "I;16" else image.convert(mode)
        image.save(buffer, kind, **({"exif": exif} if kind in ("JPEG", "PNG", "WEBP") else {}))
        seeds.append(buffer.getvalue())
    return seeds


def _plain(*seeds: bytes) -> Callable[[Path], Sequence[bytes]]:
    return lambda folder: seeds


READERS: Mapping[str, Reader] = {
    "pipeline_config": Reader(_config("x.config"), _plain(_PIPELINE)),
    "yaml": Reader(
        _config("x.yaml"), _plain(_recipe("demo_scenes"), b"recipe: retinanet\ntrain: {steps: 3}\n")
    ),
    "params_dict": Reader(_config("x.yaml"), _plain(_PARAMS)),
    "label_map": Reader(
        lambda data, folder: LabelMap.from_file(_put(folder, "x.pbtxt", data)).to_text(),
        _plain(_LABEL_MAP),
    ),
    "tfrecord": Reader(_records, _record_seeds),
    "tf_example": Reader(
        _one_record,
        lambda folder: [serialize_example(_example(folder), labels) for labels in (_LABELS, None)],
    ),
    "coco": Reader(_coco, _plain(json.dumps(_COCO).encode())),
    "coco_ground_truth": Reader(_ground_truth, _plain(json.dumps(_COCO).encode())),
    "coco_results": Reader(
        lambda data, folder: results_from_coco_json(_put(folder, "x.json", data)),
        _plain(json.dumps(_RESULTS).encode()),
    ),
    "voc": Reader(_voc, _plain(_VOC)),
    "voc_image_set": Reader(_image_set, _plain(b"a\nb -1\n")),
    "folder_coco": Reader(_folder("x.json"), _plain(json.dumps(_COCO).encode())),
    "folder_voc": Reader(_folder("a.xml"), _plain(_VOC)),
    "folder_cvat": Reader(_folder("annotations.xml"), _plain(_CVAT)),
    "folder_yolo": Reader(_folder("a.txt", {"data.yaml": _YOLO_YAML, **_LIST}), _plain(_YOLO)),
    "folder_yolo_yaml": Reader(_folder("data.yaml", {"a.txt": _YOLO, **_LIST}), _plain(_YOLO_YAML)),
    "folder_labelme": Reader(_folder("a.json"), _plain(json.dumps(_LABELME).encode())),
    "folder_labelme_embedded": Reader(_folder("b.json"), _plain(json.dumps(_EMBEDDED).encode())),
    "folder_label_studio": Reader(_folder("x.json"), _plain(json.dumps(_LABEL_STUDIO).encode())),
    "folder_open_images": Reader(
        _folder("x.csv", {"class-descriptions.csv": b"/m/0bt9lr,Dog\n"}), _plain(_OPEN_IMAGES)
    ),
    "folder_voc_csv": Reader(_folder("x.csv"), _plain(_VOC_CSV)),
    "folder_hugging_face": Reader(_folder("metadata.jsonl"), _plain(_HUGGING_FACE)),
    "folder_hugging_face_card": Reader(
        _folder("README.md", {"metadata.jsonl": _HUGGING_FACE}), _plain(_CARD)
    ),
    "tf1_index": Reader(
        _weights("w.index", {"w.data-00000-of-00001": bytes(64)}),
        lambda folder: [_tf1_files(folder)[1]],
    ),
    "object_graph": Reader(
        _object_graph,
        lambda folder: [serialize_object_graph({"a/0": f"a/0{VARIABLE}", "b/kernel": "c"})],
    ),
    "graph": Reader(_graph_model("w.pb"), _graphs),
    "tfjs": Reader(_graph_model("model.json", tfjs_shards), tfjs_seeds),
    "tflite": Reader(_graph_model("w.tflite"), tflite_seeds),
    "checkpoint": Reader(_checkpoint, _checkpoint_seeds),
    "export": Reader(_export, _export_seeds),
    "label_ids": Reader(_label_ids, _tflite),
    "history": Reader(_history, _plain(_HISTORY)),
    "runtimes": Reader(_runtimes, _runtimes_seeds),
    "npz": Reader(_weights("w.npz"), _npz),
    "npy": Reader(_member("w.npz", "a.npy"), _npy),
    "safetensors": Reader(_weights("w.safetensors"), _safetensors),
    "packed": Reader(_read_packed, _packed),
    "pth": Reader(
        _weights("w.pth"), lambda folder: [_zipped_pickle(folder), _SEQUENCE, _tar(folder)]
    ),
    "pth_pickle": Reader(_member("w.pth", "w/data.pkl", "w/data/0"), _plain(*_PICKLES)),
    "image": Reader(_image, _image_seeds),
    "stored_image": Reader(_stored, _stored_seeds),
    "image_to_record": Reader(_photo, _image_seeds),
}  # fmt: skip
