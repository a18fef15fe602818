"""`trainer`, records and augmentations of an experiment."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from stillbox.errors import UserError, nearest
from stillbox.experiment import schema
from stillbox.experiment.params_dict.training import LABEL_MAP
from stillbox.experiment.values import Value
from stillbox.references import Parameter, Setting
from stillbox_legacy.model_garden.keys import PRETRAINED
from stillbox_legacy.model_garden.section import MODEL, OPTIMIZATION, GardenSection, as_texts

_COCO_CLASSES = 91
_TRAIN, _VALIDATION = "task.train_data", "task.validation_data"
_SCORES = get_args(schema.Score)


def read_data(root: GardenSection) -> schema.Data:
    """Reads where the records are, and finds their label map."""
    crowds = root.value(f"{_TRAIN}.parser.skip_crowd_during_training", "data.train.crowds")
    train = _read_records(root, _TRAIN, "data.train")
    if not train.label_map and root.get(f"{MODEL}.num_classes") == _COCO_CLASSES:
        train = replace(train, label_map="coco")
    evaluation = _read_records(root, _VALIDATION, "data.evaluation")
    annotations = root.value("task.annotation_file", "data.evaluation.annotations") or ""
    seed = root.value(f"{_TRAIN}.seed", "data.seed") or 0
    return schema.Data(
        train=replace(train, crowds="drop" if crowds else "train"),
        evaluation=replace(
            evaluation,
            shuffle=False,
            annotations=annotations,
            label_map=evaluation.label_map or train.label_map,
        ),
        seed=seed,
    )


def _read_records(root: GardenSection, section: str, path: str) -> schema.Records:
    data = root.child(section)
    paths = _read_paths(data, path)
    boxes = data.value("parser.max_num_instances", f"{path}.max_boxes")
    expected = section == _TRAIN
    if data.value("is_training") != expected:
        data.refuse("is_training", f"{section} has it", f"is_training: {str(expected).lower()}")
    given = ""
    if data.choose("decoder.type", ("simple_decoder", "label_map_decoder")) == "label_map_decoder":
        given = data.value("decoder.label_map_decoder.label_map", f"{path}.label_map")
        if given and Path(given).suffix != ".pbtxt":
            why = "it is a table, and stillbox reads label maps"
            fix = f"write the classes into a {LABEL_MAP}, and name that"
            data.refuse("decoder.label_map_decoder.label_map", why, fix)
    beside = (Path(name).parent / LABEL_MAP for name in paths)
    description = next((str(file) for file in beside if file.is_file()), "")
    return schema.Records(paths=paths, label_map=given or description, max_boxes=boxes)


def _read_paths(data: GardenSection, path: str) -> tuple[str, ...]:
    given = data.value("input_path", f"{path}.paths", f"{path}.label_map")
    tfds = data.value("tfds_name")
    if isinstance(given, dict) or isinstance(tfds, dict):
        why = "data sets under names are mixed, and stillbox reads one list of records"
        fix = "give all of them as one list"
        data.refuse("input_path" if isinstance(given, dict) else "tfds_name", why, fix)
    paths = as_texts(given)
    if not tfds:
        return paths
    if paths and data.params.differs(data.label("input_path")):
        data.refuse("tfds_name", "input_path is given too", "keep one of them")
    data.warn(
        "tfds_name",
        f"{data.label('tfds_name')} {tfds!r} is a data set of TFDS, which stillbox does not "
        "read: there are no records; convert the data set with `stillbox data convert`, and "
        f"{Setting(f'{path}.paths', 'RECORDS')}",
    )
    return ()


def read_training(root: GardenSection) -> schema.Training:
    """Reads `trainer`."""
    trainer, every, interval = root.child("trainer"), 0, "trainer.validation_interval"
    # Records can still be named, by --set.
    if as_texts(root.get(f"{_VALIDATION}.input_path")) or root.params.differs(interval):
        every = root.value(interval, "train.evaluate_every")
    batch = root.value(f"{_TRAIN}.global_batch_size", "train.batch_size")
    frozen = root.value("task.freeze_backbone", "train.freeze")
    norms = root.get(f"{MODEL}.backbone.type") == "resnet" and not root.get(
        f"{MODEL}.backbone.resnet.bn_trainable"
    )
    freeze = (r"^backbone\.",) if frozen else (r"^backbone\..*norm\.",) if norms else ()
    return schema.Training(
        batch_size=batch,
        augmentations=_read_augmentations(root),
        optimizer=_read_optimizer(root),
        precision=_read_precision(root),
        freeze=freeze,
        fine_tune=_read_fine_tune(root),
        evaluate_every=every,
        **_read_clipping(root),
        **_read_average(root),
        **trainer.read_fields(
            "train",
            steps="train_steps",
            checkpoint_every="checkpoint_interval",
            keep_checkpoints="max_to_keep",
            summary_every="summary_interval",
        ),
    )


def _read_precision(root: GardenSection) -> Literal["float32", "bfloat16"]:
    name = "runtime.mixed_precision_dtype"
    kinds = (None, "", "float32", "bfloat16", "float16")
    kind = root.choose(name, kinds, "train.precision")
    if kind == "float16":
        root.warn(name, f"{name} float16: activations are bfloat16, the other type of 16 bits")
    return "bfloat16" if kind in ("bfloat16", "float16") else "float32"


def _read_augmentations(root: GardenSection) -> tuple[schema.Augmentation, ...]:
    section = root.child(f"{_TRAIN}.parser")
    augmentations: list[schema.Augmentation] = []
    kind = section.value("aug_type.type")
    if kind:
        reasons = {"randaug": "RandAugment is not supported"}
        section.choose("aug_type.type", ("autoaug",), "train.augmentations", reasons=reasons)
        augmentations.append(_read_policy(section.child("aug_type.autoaug")))
    if section.value("aug_rand_hflip", f"train.augmentations.{len(augmentations)}.kind"):
        augmentations.append(schema.RandomHorizontalFlip())
    return tuple(augmentations)


def _read_policy(section: GardenSection) -> schema.Augmentation:
    section.choose(
        "augmentation_name",
        ("detection_v0",),
        "train.augmentations.0.policy",
        reasons={"v0": "it is the policy of classifiers, which moves no boxes"},
    )
    for name, value in (("cutout_const", 100), ("translate_const", 250)):
        if section.value(name) != value:
            section.refuse(name, "it is fixed", f"{name}={value}")
    return schema.AutoAugment(policy="v0")


_ADAMS = ("adam", "adam_experimental", "adamw", "adamw_experimental")
_OPTIMIZERS = ("sgd", "sgd_experimental", "rmsprop", *_ADAMS)


def _read_optimizer(root: GardenSection) -> schema.Optimizer:
    path = "train.optimizer"
    section = root.child(f"{OPTIMIZATION}.optimizer")
    if section.get("type") is None:
        fix = (
            "give trainer.optimizer_config, or begin with "
            f"{Parameter('experiment')}=retinanet_resnetfpn_coco"
        )
        section.refuse("type", "the experiment retinanet has no optimiser of its own", fix)
    kind = section.choose("type", _OPTIMIZERS, f"{path}.kind")
    options, schedule = section.child(kind), _read_schedule(root, f"{path}.schedule")
    if kind.startswith("sgd"):
        _keep(options, **({"decay": 0.0} if kind == "sgd" else {}))
        # Keras multiplies gradients by their rate before it accumulates them.
        return schema.Momentum(
            schedule=schedule,
            rate_in_accumulator=True,
            **options.read_fields(path, "momentum", "nesterov"),
        )
    if kind == "rmsprop":
        _keep(options, centered=False)
        fields = options.read_fields(path, "momentum", "epsilon", decay="rho")
        return schema.RmsProp(
            schedule=schedule, initial_square=0.0, epsilon_outside=not fields["momentum"], **fields
        )
    return _read_adam(options, kind, path, schedule)


def _read_adam(
    options: GardenSection, kind: str, path: str, schedule: schema.Schedule
) -> schema.Optimizer:
    """Reads the forms of Adam; all parameters decay alike."""
    _keep(options, amsgrad=False)
    if kind == "adamw":
        for name in ("include_in_weight_decay", "exclude_from_weight_decay"):
            if options.value(name):
                options.refuse(name, "all parameters decay", f"{name}: null")
    fields = options.read_fields(path, "epsilon", beta1="beta_1", beta2="beta_2")
    if not kind.startswith("adamw") and (fields["beta1"], fields["beta2"]) == (0.9, 0.999):
        return schema.Adam(schedule=schedule, epsilon=fields["epsilon"])
    names = {"adamw": "weight_decay_rate", "adamw_experimental": "weight_decay"}
    decay = options.value(names[kind], f"{path}.weight_decay") if kind in names else 0.0
    return schema.AdamW(
        schedule=schedule,
        raw_epsilon=True,
        weight_decay=decay,
        norm_decay_multiplier=1.0,
        bias_decay_multiplier=1.0,
        **fields,
    )


def _keep(section: GardenSection, **wanted: Value) -> None:
    """Refuses fields that have another value than the only one that there is."""
    for name, value in wanted.items():
        if section.value(name) != value:
            section.refuse(name, None, f"{name}: {section.spell(value)}")


_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")


def _read_clipping(root: GardenSection) -> dict[str, Any]:
    """Returns the fields about clipping, of which Keras has three and `adamw` a fourth."""
    section = root.child(f"{OPTIMIZATION}.optimizer")
    kind = section.get("type")
    options = section.child(kind)
    fields = {
        "gradient_clip_parameter_norm": "clipnorm",
        "gradient_clip_norm": "global_clipnorm",
        "gradient_clip_value": "clipvalue",
    }
    limits = {field: options.value(name, f"train.{field}") for field, name in fields.items()}
    given = [name for name in _CLIPPING if options.get(name) is not None]
    for name in given:
        if options.get(name) == 0:
            options.refuse(name, "no gradient is left", f"{name}: null")
    if {"clipnorm", "global_clipnorm"} <= {*given}:
        options.refuse("global_clipnorm", "there is clipnorm too", "set one of them to null")
    if kind.endswith("_experimental") and len(given) > 1:
        options.refuse(given[1], f"beside {given[0]} it has no effect", f"{given[1]}: null")
    clipped = {field: value or 0.0 for field, value in limits.items()}
    if kind != "adamw":
        return clipped
    norm = options.value("gradient_clip_norm", "train.gradient_clip_norm")
    if given and norm:
        why = f"adamw clips the norm of all gradients to {norm} before"
        options.refuse(given[0], why, "gradient_clip_norm: 0")
    return clipped | ({} if given else {"gradient_clip_norm": norm})


_RATES = ("constant", "stepwise", "exponential", "polynomial", "cosine")


def _read_schedule(root: GardenSection, path: str) -> schema.Schedule:
    section = root.child(f"{OPTIMIZATION}.learning_rate")
    if section.get("type") is None:
        section.refuse("type", "there is no learning rate", "type: stepwise, with its values")
    kind = section.choose("type", _RATES, f"{path}.kind")
    options, (start, length) = section.child(kind), _read_warmup(root, path)
    if kind == "constant":
        rate = options.value("learning_rate", f"{path}.learning_rate")
        return _steps(start, length, rate, ())
    if kind == "stepwise":
        return _read_steps(options, start, length, path)
    needed = ("initial_learning_rate", "decay_steps")
    for name in (*needed, "decay_rate") if kind == "exponential" else needed:
        if options.value(name) is None:
            options.refuse(name, "it has no default", "give it")
    if options.value("offset") != 0:
        options.refuse("offset", "schedules begin with the run", "offset: 0")
    if kind == "cosine":
        return _read_cosine(options, start, length, path)
    warm: dict[str, Any] = {"warmup_learning_rate": start, "warmup_steps": length}
    if kind == "polynomial":
        _keep(options, cycle=False)
        fields = {"learning_rate": "initial_learning_rate"}
        fields["final_learning_rate"] = "end_learning_rate"
        return schema.PolynomialSchedule(
            **warm, **options.read_fields(path, "decay_steps", "power", **fields)
        )
    return schema.ExponentialSchedule(
        **warm,
        **options.read_fields(
            path, "decay_steps", learning_rate="initial_learning_rate", decay_factor="decay_rate"
        ),
        staircase=options.value("staircase", f"{path}.staircase") or False,
    )


def _read_cosine(
    options: GardenSection, start: float, length: int, path: str
) -> schema.CosineSchedule:
    rate = options.value("initial_learning_rate", f"{path}.learning_rate")
    return schema.CosineSchedule(
        learning_rate=rate,
        total_steps=options.value("decay_steps", f"{path}.total_steps"),
        final_learning_rate=rate * options.value("alpha", f"{path}.final_learning_rate"),
        warmup_learning_rate=start,
        warmup_steps=length,
        warmup_overlaps=True,
    )


def _read_warmup(root: GardenSection, path: str) -> tuple[float, int]:
    """Returns the rate at step 0 and the length; no warm-up has the length 0."""
    section = root.child(f"{OPTIMIZATION}.warmup")
    kind = section.choose("type", (None, "linear", "polynomial"), f"{path}.warmup")
    if kind is None:
        return 0.0, 0
    options = section.child(kind)
    start = 0.0
    if kind == "linear":
        start = options.value("warmup_learning_rate", f"{path}.learning_rate")
    elif options.value("power") != 1:
        options.refuse("power", "a warm-up is a straight line", "power: 1")
    return start, options.value("warmup_steps", f"{path}.schedule") or 0


def _read_steps(options: GardenSection, start: float, length: int, path: str) -> schema.Schedule:
    boundaries: tuple[int, ...] = options.value("boundaries", f"{path}.schedule") or ()
    values: tuple[float, ...] = (
        options.value("values", f"{path}.schedule", f"{path}.learning_rate") or ()
    )
    if len(values) != len(boundaries) + 1:
        sentence = (
            f"{options.label('values')} has {len(values)} rates for {len(boundaries)} boundaries"
        )
        fix = "give one rate more than boundaries"
        name = "values" if options.has("values") else "boundaries"
        raise UserError(sentence, where=options.where(name), fix=fix)
    # At a boundary Keras has the rate before it.
    first = 1 + options.value("offset", f"{path}.schedule")
    falls = tuple(
        schema.ScheduleStep(step=boundary + first, learning_rate=rate)
        for boundary, rate in zip(boundaries, values[1:], strict=True)
    )
    return _steps(start, length, values[0], falls)


def _steps(
    start: float, length: int, rate: float, falls: tuple[schema.ScheduleStep, ...]
) -> schema.Schedule:
    """Returns piecewise constant rates, after a line from `start` of a length."""
    if length:
        # The line leads to the rate that is then due.
        for fall in falls:
            rate = fall.learning_rate if fall.step <= length else rate
        warm = schema.ScheduleStep(step=length, learning_rate=rate)
        later = tuple(fall for fall in falls if fall.step > length)
        return schema.ManualStepSchedule(learning_rate=start, schedule=(warm, *later), warmup=True)
    if not falls:
        return schema.ConstantSchedule(learning_rate=rate)
    return schema.ManualStepSchedule(learning_rate=rate, schedule=falls)


def _read_average(root: GardenSection) -> dict[str, Any]:
    """Returns the fields of the moving average, which is kept if any of its keys is given."""
    prefix = f"{OPTIMIZATION}.ema"
    if not any(path.startswith(f"{prefix}.") for path in root.params.given):
        return {}
    section = root.child(prefix)
    only = section.value("trainable_weights_only", "train.ema_statistics")
    return {
        "ema_decay": section.value("average_decay", "train.ema_decay"),
        "ema_warmup": True,
        "ema_from_zero": True,
        "ema_statistics": not only,
    }


_MODULES = ("all", "backbone", "decoder")


def _read_fine_tune(root: GardenSection) -> schema.FineTune:
    place, name = "train.fine_tune", "task.init_checkpoint"
    path = root.value(name, f"{place}.checkpoint") or ""
    given = root.value("task.init_checkpoint_modules", f"{place}.scope", f"{place}.load_heads")
    modules = as_texts(given)
    for module in modules:
        if module not in _MODULES:
            fix = nearest(module, _MODULES)
            root.refuse("task.init_checkpoint_modules", None, fix, value=module)
    if path == PRETRAINED:
        path = ""
        root.log.warnings.append(
            f"{name} is {PRETRAINED}, which is not fetched: weights are random; "
            f"give {name}=PATH, or '' to be rid of this warning"
        )
    if "://" in path:
        root.refuse(name, "it is not a local file", "copy it to this machine first")
    # The original refuses a checkpoint that lacks a variable.
    if "all" in modules:
        return schema.FineTune(checkpoint=path, load_heads=True, min_loaded=1.0)
    skip = () if "backbone" in modules else (r"^backbone\.",)
    return schema.FineTune(
        checkpoint=path,
        min_loaded=1.0,
        scope="detection" if "decoder" in modules else "classification",
        skip=skip,
    )


def read_evaluation(root: GardenSection) -> schema.Evaluation:
    """Reads `validation_data`, `validation_steps` and the metric of the best checkpoint."""
    batch = root.value(f"{_VALIDATION}.global_batch_size", "evaluation.batch_size")
    steps = root.value("trainer.validation_steps", "evaluation.max_examples")
    metric = root.value("trainer.best_checkpoint_eval_metric", "evaluation.best_metric")
    if metric:
        root.choose("trainer.best_checkpoint_eval_metric", _SCORES)
    return schema.Evaluation(
        metrics=("coco",),
        batch_size=batch,
        max_examples=steps * batch if steps > 0 else 0,
        best_metric=metric or "AP",
        **root.child("task").read_fields("evaluation", per_category="per_category_metrics"),
    )
