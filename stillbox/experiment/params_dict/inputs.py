"""Records, resizing and augmentation (TPU detection fact sheet 5)."""

from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

from stillbox.experiment.params_dict.reading import Reading
from stillbox.experiment.schema import (
    Augmentation,
    AutoAugment,
    Data,
    PixelNormalization,
    RandomHorizontalFlip,
    Records,
    ScaleJitterResizer,
)

LABEL_MAP = "label_map.pbtxt"
"""What `stillbox data convert` calls the label map beside its records."""
_COCO_CLASSES = 91
_MEAN = (123.675, 116.28, 103.53)
PIXELS = PixelNormalization(mean=_MEAN, std=(58.395, 57.12, 57.375))
"""255 times ImageNet's (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225)."""
_SIZE = "retinanet_parser.output_size"


def read_data(reading: Reading) -> Data:
    """Reads where the records are, and finds their label map."""
    common = reading.fill(
        "retinanet_parser", "data.train", max_boxes="max_num_instances"
    ) | reading.fill("retinanet_parser", "data.evaluation", max_boxes="max_num_instances")
    crowds = reading.take("retinanet_parser.skip_crowd_during_training", "data.train.crowds")
    train = _read_records(reading, "train", "train_file_pattern", "data.train")
    # The dictionary has no key for names: its records hold numbers, and its results too.
    if not train.label_map and reading.take("architecture.num_classes") == _COCO_CLASSES:
        train = replace(train, label_map="coco")
    evaluation = _read_records(reading, "eval", "eval_file_pattern", "data.evaluation")
    _note_label_map(reading, train)
    annotations = ""
    if reading.take("eval.use_json_file", "data.evaluation.annotations"):
        annotations = reading.take("eval.val_json_file", "data.evaluation.annotations")
    return Data(
        train=replace(train, crowds="drop" if crowds else "train", **common),
        evaluation=replace(
            evaluation,
            shuffle=False,
            annotations=annotations,
            label_map=evaluation.label_map or train.label_map,
            **common,
        ),
    )


def _read_records(reading: Reading, section: str, name: str, path: str) -> Records:
    kind = "train_dataset_type" if section == "train" else "eval_dataset_type"
    reading.choose(f"{section}.{kind}", ("tfrecord",))
    pattern = reading.take(f"{section}.{name}", f"{path}.paths", f"{path}.label_map")
    paths = tuple(part.strip() for part in pattern.split(",") if part.strip())
    beside = (Path(path).parent / LABEL_MAP for path in paths)
    label_map = next((str(file) for file in beside if file.is_file()), "")
    return Records(paths=paths, label_map=label_map)


def _note_label_map(reading: Reading, train: Records) -> None:
    if train.paths and train.label_map:
        is_coco = train.label_map == "coco"
        why = f"COCO's, for its {_COCO_CLASSES} classes" if is_coco else "it is beside the records"
        reading.notes.append(
            f"{reading.params.where('train.train_file_pattern')}: the label map is "
            f"{train.label_map}: {why}; --set data.train.label_map=PATH names another"
        )


def read_resizer(reading: Reading) -> ScaleJitterResizer:
    """Reads size and jitter; the padding is 0 after normalisation."""
    size = reading.take(_SIZE, "model.resizer.height", "model.resizer.width")
    if len(size) != 2:
        reading.refuse(_SIZE, "it is a height and a width", f"{_SIZE}=[640, 640]")
    height, width = size
    top = reading.take("architecture.max_level", "model.resizer.multiple")
    return ScaleJitterResizer(
        height=height,
        width=width,
        # A rule refuses levels that no image has; here they must only be numbers.
        multiple=2 ** min(max(top, 0), 30),
        pad_value=_MEAN,
        **reading.fill(
            "retinanet_parser",
            "model.resizer",
            min_scale="aug_scale_min",
            max_scale="aug_scale_max",
        ),
    )


def read_augmentations(reading: Reading) -> tuple[Augmentation, ...]:
    """Reads the policy, which goes first, and the flip."""
    augmentations: list[Augmentation] = []
    if reading.take("retinanet_parser.aug_policy"):
        valid = get_args(get_type_hints(AutoAugment)["policy"])
        policy = reading.choose(
            "retinanet_parser.aug_policy", valid, "train.augmentations.0.policy"
        )
        augmentations.append(AutoAugment(policy=policy))
    flip = f"train.augmentations.{len(augmentations)}.kind"
    if reading.take("retinanet_parser.aug_rand_hflip", flip):
        augmentations.append(RandomHorizontalFlip())
    return tuple(augmentations)
