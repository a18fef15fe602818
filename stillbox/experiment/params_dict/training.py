"""`train` and `eval`, records, resizing and augmentation."""

import math
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.params_dict.keys import NECKS
from stillbox.experiment.params_dict.section import KeySection, compile_regex, freezes_norm
from stillbox.object_storage import url_of
from stillbox.references import Setting

LABEL_MAP = "label_map.pbtxt"
"""Name of the label map that `stillbox data convert` writes beside its records."""
_COCO_CLASSES = 91
_MEAN = (123.675, 116.28, 103.53)
PIXELS = schema.PixelNormalization(mean=_MEAN, std=(58.395, 57.12, 57.375))
"""255 times ImageNet's (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225)."""
_SIZE = "retinanet_parser.output_size"


def read_data(root: KeySection) -> schema.Data:
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
    return schema.Data(
        train=replace(train, crowds="drop" if crowds else "train", max_boxes=boxes),
        evaluation=replace(
            evaluation,
            shuffle=False,
            annotations=annotations,
            label_map=evaluation.label_map or train.label_map,
            max_boxes=boxes,
        ),
    )


def _read_records(root: KeySection, section: str, path: str) -> schema.Records:
    root.choose(f"{section}.{section}_dataset_type", ("tfrecord",))
    key = f"{section}.{section}_file_pattern"
    pattern = root.value(key, f"{path}.paths", f"{path}.label_map")
    paths = tuple(part.strip() for part in pattern.split(",") if part.strip())
    beside = (Path(path).parent / LABEL_MAP for path in paths)
    label_map = next((str(file) for file in beside if file.is_file()), "")
    return schema.Records(paths=paths, label_map=label_map)


def _note_label_map(root: KeySection, train: schema.Records) -> None:
    if train.paths and train.label_map:
        is_coco = train.label_map == "coco"
        why = f"COCO's, for its {_COCO_CLASSES} classes" if is_coco else "it is beside the records"
        if is_coco and url_of(train.paths[0]):
            why += "; one beside records at a URL is not looked for"
        root.note(
            "train.train_file_pattern",
            f"the label map is {train.label_map}: {why}; "
            f"{Setting('data.train.label_map', 'PATH')} names another",
        )


def read_resizer(root: KeySection) -> schema.ScaleJitterResizer:
    """Reads size and jitter; the padding is 0 after normalisation."""
    size = root.value(_SIZE, "model.resizer.height", "model.resizer.width")
    if len(size) != 2:
        root.refuse(_SIZE, "it is a height and a width", f"{_SIZE}=[640, 640]")
    height, width = size
    top = root.value("architecture.max_level", "model.resizer.multiple")
    return schema.ScaleJitterResizer(
        height=height,
        width=width,
        # A rule refuses levels that no image has; here they must only be numbers.
        multiple=2 ** min(max(top, 0), 30),
        pad_value=_MEAN,
        **root.child("retinanet_parser").read_fields(
            "model.resizer", min_scale="aug_scale_min", max_scale="aug_scale_max"
        ),
    )


def read_augmentations(root: KeySection) -> tuple[schema.Augmentation, ...]:
    """Reads the policy, which comes first, and the flip."""
    augmentations: list[schema.Augmentation] = []
    section = root.child("retinanet_parser")
    if section.value("aug_policy"):
        valid = get_args(get_type_hints(schema.AutoAugment)["policy"])
        policy = section.choose("aug_policy", valid, "train.augmentations.0.policy")
        augmentations.append(schema.AutoAugment(policy=policy))
    if section.value("aug_rand_hflip", f"train.augmentations.{len(augmentations)}.kind"):
        augmentations.append(schema.RandomHorizontalFlip())
    return tuple(augmentations)


RESNET_STEM = r"(resnet\d+)\/(conv2d(|_([1-9]|10))|batch_normalization(|_([1-9]|10)))\/"
"""Frozen by default in 2020: the first convolution and the first group of a ResNet."""
_FROZEN = "train.frozen_variable_prefix"
_CHECKPOINT = "train.checkpoint"
_RATES = "train.learning_rate"
_CORES, _CUT = "train.num_cores_per_replica", "train.input_partition_dims"
_REGEX_FIX = "the original matches it against the start of variables' names"


def read_training(
    root: KeySection, model: schema.Model, augmentations: tuple[schema.Augmentation, ...]
) -> schema.Training:
    """Reads `train`."""
    # Records can still be named, by --set.
    every, interval = 0, "eval.num_steps_per_eval"
    if root.get("eval.eval_file_pattern") or root.params.differs(interval):
        every = root.value(interval, "train.evaluate_every")
    bfloat16 = root.value("architecture.use_bfloat16", "train.precision")
    if not root.value("use_tpu", "train.precision") and bfloat16:
        root.note(
            "use_tpu",
            "without a TPU the original computes in float32 and ignores use_bfloat16; "
            f"{Setting('train.precision', 'bfloat16')} applies it",
        )
        bfloat16 = False
    return schema.Training(
        augmentations=augmentations,
        optimizer=_read_optimizer(root),
        precision="bfloat16" if bfloat16 else "float32",
        freeze=(*_read_frozen(root), *_frozen_norms(root, model)),
        fine_tune=_read_fine_tune(root),
        evaluate_every=every,
        **root.child("train").read_fields(
            "train", "gradient_clip_norm", batch_size="train_batch_size", steps="total_steps"
        ),
    )


def _read_optimizer(root: KeySection) -> schema.Optimizer:
    kinds = ("momentum", "adam", "adadelta", "adagrad", "rmsprop")
    path = "train.optimizer"
    kind = root.choose("train.optimizer.type", kinds, f"{path}.kind")
    schedule = _read_schedule(root, f"{path}.schedule")
    if kind == "adam":
        return schema.Adam(schedule=schedule)
    if kind == "adadelta":
        return schema.Adadelta(schedule=schedule)
    if kind == "adagrad":
        return schema.Adagrad(schedule=schedule)
    momentum = root.value("train.optimizer.momentum", f"{path}.momentum")
    if kind == "momentum":
        return schema.Momentum(schedule=schedule, momentum=momentum)
    return schema.RmsProp(schedule=schedule, momentum=momentum, decay=0.9, epsilon=1e-3)


def _read_schedule(root: KeySection, path: str) -> schema.Schedule:
    section = root.child(_RATES)
    if section.choose("type", ("step", "cosine"), f"{path}.kind") == "step":
        return _read_steps(section, path)
    return schema.CosineSchedule(
        total_steps=root.value("train.total_steps", f"{path}.total_steps"),
        **section.read_fields(
            path, "warmup_learning_rate", "warmup_steps", learning_rate="init_learning_rate"
        ),
    )


def _read_steps(section: KeySection, path: str) -> schema.Schedule:
    levels, steps = (
        section.value(f"learning_rate_{name}", f"{path}.schedule") for name in ("levels", "steps")
    )
    if len(levels) != len(steps):
        raise UserError(
            f"{_RATES} has {len(levels)} learning_rate_levels and {len(steps)} learning_rate_steps",
            where=section.where("learning_rate_levels") or section.where("learning_rate_steps"),
            fix="give a step to each level",
        )
    rate = section.value("init_learning_rate", f"{path}.learning_rate")
    warmup = section.value("warmup_steps", f"{path}.schedule", f"{path}.warmup")
    start = section.value("warmup_learning_rate", f"{path}.learning_rate")
    falls = tuple(
        schema.ScheduleStep(step=step, learning_rate=level)
        for step, level in zip(steps, levels, strict=True)
    )
    if warmup:
        # The line from the first rate to the first scheduled one is the warm-up.
        first = schema.ScheduleStep(step=warmup, learning_rate=rate)
        return schema.ManualStepSchedule(learning_rate=start, schedule=(first, *falls), warmup=True)
    if not falls:
        return schema.ConstantSchedule(learning_rate=rate)
    return schema.ManualStepSchedule(learning_rate=rate, schedule=falls)


def _read_frozen(root: KeySection) -> tuple[str, ...]:
    regex = root.value(_FROZEN, "train.freeze")
    if not regex:
        return ()
    compile_regex(root, _FROZEN, _REGEX_FIX)
    backbone = root.get("architecture.backbone")
    if regex == RESNET_STEM and backbone != "resnet":
        root.note(_FROZEN, f"{_FROZEN} is about ResNets and freezes nothing of this {backbone}")
        return ()
    # Patterns of the original hold from the start of a name on; its names end with `:0`.
    return (f"^(?:{regex.replace(':0', '')})",)


def _frozen_norms(root: KeySection, model: schema.Model) -> list[str]:
    """Returns patterns for the scales and offsets that batch_norm_trainable freezes."""
    neck = root.get("architecture.multilevel_features")
    blocks = {
        "backbone": root.get("architecture.backbone"),
        "neck": neck if neck in NECKS else None,
        "head": "retinanet_head",
    }
    return [
        rf"^{part}\..*norm[^.]*\.(scale|bias)$"
        for part, block in blocks.items()
        if block and freezes_norm(root, block) and getattr(model, part).conv.batch_norm
    ]


def _read_fine_tune(root: KeySection) -> schema.FineTune:
    section, place = root.child(_CHECKPOINT), "train.fine_tune"
    path = section.value("path", f"{place}.checkpoint")
    prefix = section.value("prefix", f"{place}.scope", f"{place}.load_heads")
    skip = section.value("skip_variables_regex", f"{place}.skip")
    if skip:
        compile_regex(root, f"{_CHECKPOINT}.skip_variables_regex", _REGEX_FIX)
    # A checkpoint can still be named, and these keys are about it.
    if not (path or prefix or skip):
        return schema.FineTune()
    # The names of a classifier's checkpoint lack the backbone's prefix.
    if path and prefix:
        _check_prefix(root, prefix)
    return schema.FineTune(
        checkpoint=path,
        scope="classification" if prefix else "detection",
        load_heads=not prefix,
        skip=(f"^(?:{skip})",) if skip else (),
    )


def _check_prefix(root: KeySection, prefix: str) -> None:
    backbone = root.get("architecture.backbone")
    scope = f"{backbone}{root.get('resnet.resnet_depth') if backbone == 'resnet' else ''}"
    if prefix.rstrip("/") != scope:
        key = f"{_CHECKPOINT}.prefix"
        fix = f"{key}={scope}/ for a classifier's checkpoint, nothing for a detector's"
        root.refuse(key, f"a prefix names the backbone, which is {scope}/ in this model", fix)


def read_evaluation(root: KeySection) -> schema.Evaluation:
    """Reads `eval`."""
    section = root.child("eval")
    section.choose("type", ("box",), "evaluation.metrics")
    samples = section.value("eval_samples", "evaluation.max_examples")
    if samples:
        section.warn(
            "eval_samples",
            f"eval_samples {samples}: of more images only the first so many are scored; "
            "eval_samples: null scores all",
        )
    return schema.Evaluation(
        metrics=("coco",),
        max_examples=samples or 0,
        **section.read_fields(
            "evaluation", batch_size="eval_batch_size", per_category="per_category_metrics"
        ),
    )


def read_devices(root: KeySection) -> schema.Devices:
    """Reads spatial partitioning. The number of replicas follows from the devices."""
    path = "devices.spatial_partitions"
    cut = root.value(_CUT, path) or (1, 1, 1, 1)
    if len(cut) != 4 or (*cut[:1], *cut[2:]) != (1, 1, 1) or cut[1] < 1:
        root.refuse(
            _CUT, "an image is cut along its height alone", f"{_CUT}=[1,{math.prod(cut)},1,1]"
        )
    cores = root.value(_CORES, path) or cut[1]
    if cores != cut[1]:
        why = f"{_CUT} cuts an image into {cut[1]}"
        root.refuse(_CORES, why, f"{_CORES}={cores},{_CUT}=[1,{cores},1,1]")
    return schema.Devices(spatial_partitions=cut[1])
