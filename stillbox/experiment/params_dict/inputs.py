"""Records, resizing and augmentation."""

from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

from stillbox.experiment.params_dict.section import KeySection
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
"""Name of the label map that `stillbox data convert` writes beside its records."""
_COCO_CLASSES = 91
_MEAN = (123.675, 116.28, 103.53)
PIXELS = PixelNormalization(mean=_MEAN, std=(58.395, 57.12, 57.375))
"""255 times ImageNet's (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225)."""
_SIZE = "retinanet_parser.output_size"


def read_data(root: KeySection) -> Data:
    """Reads where the records are, and finds their label map."""
    boxes = root.value(
        "retinanet_parser.max_num_instances", "data.train.max_boxes", "data.evaluation.max_boxes"
    )
    crowds = root.value("retinanet_parser.skip_crowd_during_training", "data.train.crowds")
    train = _read_records(root, "train", "data.train")
    # The dictionary has no key for names: its records hold numbers, and its results too.
    if not train.label_map and root.value("architecture.num_classes") == _COCO_CLASSES:
        train = replace(train, label_map="coco")
    evaluation = _read_records(root, "eval", "data.evaluation")
    _note_label_map(root, train)
    annotations = ""
    if root.value("eval.use_json_file", "data.evaluation.annotations"):
        annotations = root.value("eval.val_json_file", "data.evaluation.annotations")
    return Data(
        train=replace(train, crowds="drop" if crowds else "train", max_boxes=boxes),
        evaluation=replace(
            evaluation,
            shuffle=False,
            annotations=annotations,
            label_map=evaluation.label_map or train.label_map,
            max_boxes=boxes,
        ),
    )


def _read_records(root: KeySection, section: str, path: str) -> Records:
    root.choose(f"{section}.{section}_dataset_type", ("tfrecord",))
    key = f"{section}.{section}_file_pattern"
    pattern = root.value(key, f"{path}.paths", f"{path}.label_map")
    paths = tuple(part.strip() for part in pattern.split(",") if part.strip())
    beside = (Path(path).parent / LABEL_MAP for path in paths)
    label_map = next((str(file) for file in beside if file.is_file()), "")
    return Records(paths=paths, label_map=label_map)


def _note_label_map(root: KeySection, train: Records) -> None:
    if train.paths and train.label_map:
        is_coco = train.label_map == "coco"
        why = f"COCO's, for its {_COCO_CLASSES} classes" if is_coco else "it is beside the records"
        root.note(
            "train.train_file_pattern",
            f"the label map is {train.label_map}: {why}; "
            "--set data.train.label_map=PATH names another",
        )


def read_resizer(root: KeySection) -> ScaleJitterResizer:
    """Reads size and jitter; the padding is 0 after normalisation."""
    size = root.value(_SIZE, "model.resizer.height", "model.resizer.width")
    if len(size) != 2:
        root.refuse(_SIZE, "it is a height and a width", f"{_SIZE}=[640, 640]")
    height, width = size
    top = root.value("architecture.max_level", "model.resizer.multiple")
    return ScaleJitterResizer(
        height=height,
        width=width,
        # A rule refuses levels that no image has; here they must only be numbers.
        multiple=2 ** min(max(top, 0), 30),
        pad_value=_MEAN,
        **root.child("retinanet_parser").fill(
            "model.resizer", min_scale="aug_scale_min", max_scale="aug_scale_max"
        ),
    )


def read_augmentations(root: KeySection) -> tuple[Augmentation, ...]:
    """Reads the policy, which comes first, and the flip."""
    augmentations: list[Augmentation] = []
    section = root.child("retinanet_parser")
    if section.value("aug_policy"):
        valid = get_args(get_type_hints(AutoAugment)["policy"])
        policy = section.choose("aug_policy", valid, "train.augmentations.0.policy")
        augmentations.append(AutoAugment(policy=policy))
    if section.value("aug_rand_hflip", f"train.augmentations.{len(augmentations)}.kind"):
        augmentations.append(RandomHorizontalFlip())
    return tuple(augmentations)
