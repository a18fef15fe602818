"""The folder in which the commands of the documentation are run, small in everything.

What the pages call owls and pets are scenes of six shapes; what they call published checkpoints are
fresh weights under the names that TF1 gave them.
"""

import shutil
from pathlib import Path

import cv2
import numpy as np

from stillbox.checkpoints.names import reference_names
from stillbox.cli.overrides import changes_of
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.records.conversion import ConversionOptions, convert
from stillbox.records.formats.coco import read_coco
from stillbox.records.problems import ConversionLog
from stillbox.records.scenes import write_scenes
from stillbox.training.loop import train
from tests.checkpoints.tf_writer import write_checkpoint
from tests.experiment.sample import SAMPLE
from tests.helpers import read_json
from tests.small import SMALL

TINY = (
    *(override for override in SMALL if not override.startswith("train.evaluate_every")),
    "model.num_classes=6",
    "train.checkpoint_every=1",
    "data.workers=0",
    # After some steps nothing scores more than .01, and nothing would be shown.
    "model.postprocessing.nms.score_threshold=0",
)
"""What every training in the documentation is made small with; the pages' own values come first."""

SSD_RESNET34_TINY = (
    "model.resizer={height: 64, width: 64}",
    "model.backbone={kind: mobilenet_v1, depth_multiplier: 0.125, min_depth: 8}",
    "model.neck={taps: [conv_1_pointwise, conv_2_pointwise], extra_depths: [], extra_strides: []}",
    "model.anchors={kind: ssd, num_layers: 2, scales: [0.2, 0.4]}",
    "model.head.kernel_size=1",
    "model.postprocessing.nms.score_threshold=0",
    "train.augmentations=[]",
    "train.batch_size=4",
    "train.checkpoint_every=1",
    "train.optimizer.schedule={kind: constant, learning_rate: 0.01}",
    "train.fine_tune.checkpoint=",
    "train.freeze=[]",
    "train.precision=float32",
    "data.workers=0",
)
"""The same for the command of SSD ResNet-34."""


RETINANET_TINY = (
    "model.resizer={height: 64, width: 64, multiple: 16}",
    "model.backbone={kind: mobilenet_v1, depth_multiplier: 0.125, min_depth: 8}",
    "model.neck={kind: retinanet_fpn, depth: 8, max_level: 4}",
    "model.anchors.max_level=4",
    "model.head={depth: 8, layers_before: 1}",
    "model.postprocessing.nms.score_threshold=0",
    "train.batch_size=4",
    "train.checkpoint_every=1",
    "train.optimizer.schedule={kind: constant, learning_rate: 0.01}",
    "train.fine_tune.checkpoint=",
    "train.precision=float32",
    "data.workers=0",
)
"""Changes for the page of RetinaNet on TPU."""

PICKED_TINY = (
    "model.resizer={kind: fixed_shape, height: 64, width: 64}",
    "model.backbone={kind: mobilenet_v1, depth_multiplier: 0.125, min_depth: 8}",
    "model.neck.depth=8",
    "model.head={depth: 8, layers_before: 1}",
    *(word for word in TINY if not word.startswith(("model.", "train.optimizer"))),
    "model.num_classes=6",
    "model.postprocessing.nms.score_threshold=0",
)
"""And for the recipe that `stillbox train --data` picks."""

_TEMPLATE = """\
architecture: {backbone: spinenet, multilevel_features: identity}
train: {l2_weight_decay: 0.00004, gradient_clip_norm: 10.0}
spinenet: {model_id: '49'}
"""
_DICTIONARY = """\
type: retinanet
train: {train_file_pattern: coco/records/train-*}
eval: {eval_file_pattern: coco/records/val-*}
"""


def prepare() -> None:
    """Puts everything that some page starts from into the current folder."""
    write_scenes("scenes", train=8, val=4, seed=3)
    for part in ("images", "annotations"):
        shutil.copytree(f"scenes/{part}", f"owls/{part}")
    _write_voc(Path("owls-voc"))
    Path("photos").mkdir()
    for number in (1, 2):
        shutil.copy(f"scenes/images/val/val_0000{number}.jpg", f"photos/owl_{number}.jpg")
    frame = cv2.imread("photos/owl_1.jpg")
    code = cv2.VideoWriter.fourcc(*"mp4v")
    flight = cv2.VideoWriter("flight.mp4", code, 25, (frame.shape[1], frame.shape[0]))
    for _ in range(4):
        flight.write(frame)
    flight.release()
    for output, prefix, shards in (("owls/records", "", 1), ("pets", "pet_", 2)):
        _convert(output, f"{prefix}train", "train", shards)
        _convert(output, f"{prefix}val", "val", 1)
    Path("pets/label_map.pbtxt").rename("pets/pet_label_map.pbtxt")
    _write_coco("owls/records")
    Path("pets.config").write_text(_pipeline_config())
    shutil.rmtree("scenes")
    classifier = resolve("ssd_mobilenet_v1_bccd", changes_of(TINY)).experiment.model
    _write_tf1("mobilenet_v1_1.0_224.ckpt", classifier, scope="classification")
    detector = resolve("pets.config", changes_of(TINY)).experiment.model
    for name in ("coco", "pets"):
        Path(f"ssd_mobilenet_v1_{name}").mkdir()
        _write_tf1(f"ssd_mobilenet_v1_{name}/model.ckpt", detector, scope="detection")
    _train_owls()


def _train_owls() -> None:
    sets = [
        f"data.{part}.{field}=owls/records/{value}"
        for part, name in (("train", "train"), ("evaluation", "val"))
        for field, value in (("paths", f"{name}.record-*"), ("label_map", "label_map.pbtxt"))
    ]
    overrides = [*sets, *TINY, "train.steps=2", "train.fine_tune.checkpoint="]
    train(resolve("ssd_mobilenet_v1_bccd", changes_of(overrides)).experiment, Path("runs/owls"))


def _convert(output: str, name: str, part: str, shards: int) -> None:
    log = ConversionLog("fail", "fail")
    items, label_map = read_coco(f"scenes/annotations/{part}.json", f"scenes/images/{part}", log)
    options = ConversionOptions(shards=shards)
    convert(items, label_map, output, name, options=options, log=log)


def _write_coco(records: str) -> None:
    """Scenes under the names of COCO's records, with a label map of their own."""
    target = Path("coco/records")
    target.mkdir(parents=True)
    for part in ("train", "val"):
        (source,) = Path(records).glob(f"{part}.record-*")
        shutil.copy(source, target / f"{part}-00000-of-00001.tfrecord")
    shutil.copy(f"{records}/label_map.pbtxt", target)
    Path("coco/val2017").mkdir()
    shutil.copy("photos/owl_1.jpg", "coco/val2017/000000000139.jpg")
    # Fresh weights are what the page's training is made small with.
    Path("resnet34.pth").touch()
    Path("coco/annotations").mkdir()
    shutil.copy("owls/annotations/val.json", "coco/annotations/instances_val2017.json")
    Path("spinenet49_retinanet.yaml").write_text(_TEMPLATE)
    Path("my_retinanet.yaml").write_text(_DICTIONARY)


def _write_voc(root: Path) -> None:
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / name).mkdir(parents=True)
    for part in ("train", "val"):
        content = read_json(f"scenes/annotations/{part}.json")
        names = {category["id"]: category["name"] for category in content["categories"]}
        stems = []
        for image in content["images"]:
            stem = Path(image["file_name"]).stem
            stems.append(stem)
            shutil.copy(f"scenes/images/{part}/{stem}.jpg", root / "JPEGImages")
            objects = []
            for box in content["annotations"]:
                if box["image_id"] == image["id"]:
                    x, y, width, height = box["bbox"]
                    objects.append(
                        f"<object><name>{names[box['category_id']]}</name><bndbox>"
                        f"<xmin>{x}</xmin><ymin>{y}</ymin><xmax>{x + width}</xmax>"
                        f"<ymax>{y + height}</ymax></bndbox></object>"
                    )
            text = f"<annotation>{''.join(objects)}</annotation>"
            (root / "Annotations" / f"{stem}.xml").write_text(text)
        (root / "ImageSets/Main" / f"{part}.txt").write_text("\n".join(stems))


def _pipeline_config() -> str:
    """The sample of the reader's tests, as its author would publish it: with placeholders."""
    text = SAMPLE
    for old, new in (
        ('"backbone.npz"', '"PATH_TO_BE_CONFIGURED/model.ckpt"'),
        ('["train-a.record", "train-b.record"]', '"PATH_TO_BE_CONFIGURED/a-00000-of-00002"'),
        ('"val.record"', '"PATH_TO_BE_CONFIGURED/val.record"'),
        ('"labels.pbtxt"', '"PATH_TO_BE_CONFIGURED/labels.pbtxt"'),
        ('freeze_variables: "backbone.*"', ""),
        ("use_bfloat16: true", ""),
        ("use_dropout: true", "use_dropout: false"),
        ("use_display_name: true", ""),
        ("num_classes: 3", "num_classes: 6"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def _write_tf1(prefix: str, model: schema.OneStage, *, scope: str) -> None:
    _, params, stats = split_detector(build_detector(model))
    arrays = {**params, **stats}
    names = reference_names(model, arrays, scope=scope)
    write_checkpoint(prefix, {name: np.asarray(arrays[path]) for path, name in names.items()})
