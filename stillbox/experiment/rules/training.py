"""Rules about training, its data, quantisation, scoring and devices.

Rules about devices hold on all machines.
"""

import itertools
import math
from dataclasses import replace
from pathlib import Path

from PIL import ImageColor

from stillbox.errors import UserError, nearest
from stillbox.experiment import schema
from stillbox.experiment.rules.rule import Remark, Remarks, apply_rules, input_sides, rule
from stillbox.experiment.run_length import batch_norms
from stillbox.references import Parameter, Setting
from stillbox.textformat.name_patterns import NamePattern


@rule(schema.CosineSchedule)
def cosine_fits(schedule: schema.CosineSchedule) -> Remarks:
    """The warm-up rises, and ends no later than the decay does."""
    warmup_steps = schedule.warmup_steps or 0
    if schedule.total_steps and schedule.total_steps < warmup_steps:
        problem = f"total_steps {schedule.total_steps} is less than {warmup_steps} warmup_steps"
        yield Remark("total_steps", problem, "raise it, or shorten the warm-up")
    # Without warm-up steps its rate is never used.
    used = {"final_learning_rate": "decay would rise"}
    if warmup_steps:
        used["warmup_learning_rate"] = "warm-up would fall"
    for name, consequence in used.items():
        if getattr(schedule, name) > schedule.learning_rate:
            problem = (
                f"{name} {getattr(schedule, name)} is above learning_rate "
                f"{schedule.learning_rate}, so the {consequence}"
            )
            yield Remark(name, problem, "lower it")


@rule(schema.ManualStepSchedule)
def boundaries_rise(schedule: schema.ManualStepSchedule) -> Remarks:
    """Manual steps are in order, and a warm-up has a rate to end at."""
    steps = [boundary.step for boundary in schedule.schedule]
    for index, (before, after) in enumerate(itertools.pairwise(steps)):
        if after <= before:
            problem = f"step {after} follows step {before}"
            fix = "put the boundaries in rising order"
            yield Remark(f"schedule.{index + 1}.step", problem, fix)
    if schedule.warmup and not any(steps[:1]):
        fault = "is at step 0" if steps else "does not exist: the schedule is empty"
        problem = f"warmup goes to the first scheduled rate, which {fault}"
        yield Remark("warmup", problem, "add a boundary, or set warmup to false")


@rule(schema.Experiment)
def annotations_are_for_scoring(experiment: schema.Experiment) -> Remarks:
    """Training reads the boxes of its records."""
    if experiment.data.train.annotations:
        problem = "annotations are the ground truth of evaluation; training learns from its records"
        yield Remark("data.train.annotations", problem, "move them to data.evaluation.annotations")


@rule(schema.Experiment)
def decoded_images_are_kept_in_one_process(experiment: schema.Experiment) -> Remarks:
    """Each process would keep images that another one needs in the next epoch."""
    if experiment.data.processes and experiment.data.cache_images:
        problem = "data.cache_images keeps decoded images in the memory of one process"
        yield Remark(
            "data.processes", problem, f"{Setting('data.cache_images', False)}, or data.processes=0"
        )


@rule(schema.Experiment)
def reduced_images_can_be_read(experiment: schema.Experiment) -> Remarks:
    """Images are reduced by their decoder, for methods that place them as whole ones."""
    path, method = "data.reduced_decoding", experiment.model.resizer.method
    if not experiment.data.reduced_decoding:
        return
    if experiment.data.cache_images:
        problem = "data.cache_images keeps whole images, so that none is reduced"
        yield Remark(path, problem, "use one of the two")
    if method not in ("bilinear", "bilinear_antialias"):
        problem = f"the resizer's method {method} reads whole images"
        yield Remark(path, problem, "leave it out, or take bilinear or bilinear_antialias")


@rule(schema.Experiment)
def tiles_fit_the_canvas(experiment: schema.Experiment) -> Remarks:
    """A resizer that does not shrink has room for a tile, and for no whole image."""
    tiles, resizer = experiment.data.tiles, experiment.model.resizer
    if tiles is None or not isinstance(resizer, schema.CanvasResizer) or _shrinks(resizer):
        return
    least = min(resizer.input_size)
    # A canvas that is not given is reported by a rule of its own.
    if 0 < least < tiles.side:
        problem = (
            f"a tile of {tiles.side} pixels does not fit the canvas of {least}, and the resizer "
            f"{resizer.kind} does not shrink it"
        )
        yield Remark("data.tiles.side", problem, f"give at most {least}, or a larger canvas")
    if tiles.whole_image:
        problem = f"the resizer {resizer.kind} does not shrink whole images to its canvas"
        fix = f"{Setting('data.tiles.whole_image', False)}, or take the resizer fixed_shape"
        yield Remark("data.tiles.whole_image", problem, fix)


def _shrinks(resizer: schema.CanvasResizer) -> bool:
    """Returns whether images of all sizes fit the canvas after resizing."""
    return isinstance(resizer, schema.ConditionalShapeResizer) and resizer.condition == "greater"


@rule(schema.Training)
def patterns_compile(train: schema.Training) -> Remarks:
    """Regular expressions are some, and are found in any name in little time."""
    patterns = {
        "freeze": train.freeze,
        "trainable": train.trainable,
        "fine_tune.skip": train.fine_tune.skip,
    }
    for index, group in enumerate(train.optimizer.groups):
        patterns[f"optimizer.groups.{index}.pattern"] = (group.pattern,)
    for path, texts in patterns.items():
        for text in texts:
            try:
                NamePattern(text)
            except UserError as refusal:
                yield Remark(path, refusal.what, refusal.fix or "")


@rule(schema.Training)
def average_from_zero_grows(train: schema.Training) -> Remarks:
    """An average that starts at 0 forgets it in its first steps, by the warm-up."""
    if train.ema_decay is not None and train.ema_from_zero and not train.ema_warmup:
        problem = "an average that starts at 0 is too small until it has forgotten its start"
        yield Remark("ema_from_zero", problem, "set ema_warmup to true, or ema_from_zero to false")


@rule(schema.Training)
def average_has_one_start(train: schema.Training) -> Remarks:
    """The decay has one ramp, and the average one first value."""
    if train.ema_decay is None:
        return
    if train.ema_tau and train.ema_warmup:
        problem = "ema_tau and ema_warmup are two ramps of one decay"
        yield Remark("ema_tau", problem, "set ema_warmup to false, or ema_tau to 0")
    if train.ema_copy_first and train.ema_from_zero:
        problem = "an average whose first update copies the parameters does not start at 0"
        yield Remark(
            "ema_copy_first", problem, "set one of ema_copy_first and ema_from_zero to false"
        )


@rule(schema.Optimizer)
def groups_change_something(optimizer: schema.Optimizer) -> Remarks:
    """A group names parameters, and has a factor that the update rule uses."""
    for index, group in enumerate(optimizer.groups):
        path = f"groups.{index}"
        if not group.pattern:
            fix = "give a regular expression such as ^neck"
            yield Remark(f"{path}.pattern", "a group without a pattern", fix)
        if group.decay_multiplier is not None and not isinstance(optimizer, schema.AdamW):
            problem = f"{optimizer.kind} has no weight decay; that of its kernels is in the loss"
            yield Remark(f"{path}.decay_multiplier", problem, "take it out, or take kind adamw")
        elif group.learning_rate_multiplier == 1 and group.decay_multiplier is None:
            problem = "a group that changes neither learning rate nor weight decay"
            fix = "give learning_rate_multiplier or decay_multiplier"
            yield Remark(f"{path}.learning_rate_multiplier", problem, fix)


@rule(schema.Experiment)
def layer_decay_has_layers(experiment: schema.Experiment) -> Remarks:
    """Learning rates fall along a chain of layers."""
    backbone = getattr(experiment.model, "backbone", None)
    decays = experiment.train.optimizer.backbone_layer_decay != 1
    if decays and isinstance(backbone, schema.SpineNet | schema.SpineNetMbConv):
        path = "train.optimizer.backbone_layer_decay"
        problem = f"the nodes of {backbone.kind} are no chain of layers"
        yield Remark(path, problem, "set it to 1; backbone_multiplier holds for the whole backbone")


@rule(schema.Training)
def early_stopping_has_scores(train: schema.Training) -> Remarks:
    """Early stopping depends on evaluations during training."""
    if train.early_stopping is not None and not train.evaluate_every:
        problem = "early_stopping without evaluations during training never stops"
        yield Remark("early_stopping", problem, "set train.evaluate_every")


@rule(schema.EarlyStopping)
def early_stopping_has_a_reason(stopping: schema.EarlyStopping) -> Remarks:
    """Without patience there is a target, and no option of patience."""
    if stopping.patience:
        return
    if stopping.target is None:
        problem = "early_stopping with patience 0 and without a target never stops"
        yield Remark("patience", problem, "give a target or a patience of 1 or more")
    if stopping.min_delta:
        problem = f"min_delta {stopping.min_delta} has no effect while patience is 0"
        yield Remark("min_delta", problem, "take it out, or give a patience of 1 or more")


@rule(schema.Experiment)
def images_can_be_cut(experiment: schema.Experiment) -> Remarks:
    """The devices that share an image get equally many rows of it."""
    parts = experiment.devices.spatial_partitions
    if parts > 1 and isinstance(experiment.model, schema.FasterRcnn):
        problem = f"{parts} devices cannot share an image: crops are taken from whole feature maps"
        yield Remark(
            "devices.spatial_partitions", problem, f"{Setting('devices.spatial_partitions', 1)}"
        )
        return
    path, height = next(input_sides(experiment.model))
    # Numbers below 1 are reported as out of range.
    if parts >= 1 and height >= 1 and height % parts:
        # A height that is padded to such a multiple may become this one again.
        step = math.lcm(parts, max(getattr(experiment.model.resizer, "multiple", 1), 1))
        yield Remark(
            "devices.spatial_partitions",
            f"an image of {height} rows (model.{path}) cannot be cut into {parts} equal parts",
            f"set model.{path} to {_multiples_near(height, step)}, "
            f"or spatial_partitions to {_divisor_below(height, parts)}",
        )


@rule(schema.Training)
def accumulation_divides_the_batch(train: schema.Training) -> Remarks:
    """Micro-batches are equally large."""
    parts, batch = train.accumulation_steps, train.batch_size
    if parts >= 1 and batch >= 1 and batch % parts:
        yield Remark(
            "accumulation_steps",
            f"a batch of {batch} (train.batch_size) cannot be divided into {parts} micro-batches",
            f"set train.batch_size to {_multiples_near(batch, parts)}, "
            f"or accumulation_steps to {_divisor_below(batch, parts)}",
        )


@rule(schema.Experiment)
def input_sizes_fit(experiment: schema.Experiment) -> Remarks:
    """Everything that holds for the input of the model holds for each that it is trained at."""
    path, sizes = "train.input_sizes", experiment.train.input_sizes
    resizer = experiment.model.resizer
    if len(set(sizes)) < len(sizes):
        yield Remark(path, f"{path} has a size twice", "name each once: all are equally likely")
    for size in sizes:
        if size >= 1 and resizer.with_height(size) is None:
            yield Remark(path, *_no_such_size(resizer, size))
    if not sizes:
        return
    alone = replace(experiment, train=replace(experiment.train, input_sizes=()))
    known = {finding.what for finding in apply_rules(alone)}
    for sized in experiment.at_input_sizes:
        height, width = sized.model.resizer.input_size
        for finding in apply_rules(sized):
            if finding.severity == "error" and finding.what not in known:
                problem = f"at {height} x {width} of {path}: {finding.what}"
                yield Remark(path, problem, f"take another size ({finding.fix})")


def _no_such_size(resizer: schema.Resizer, size: int) -> tuple[str, str]:
    """Returns what keeps a resizer from an input of `size` rows, and the remedy."""
    if not isinstance(resizer, schema.FixedShapeResizer | schema.ScaleJitterResizer):
        problem = f"the resizer {resizer.kind} leaves the sizes of images to the images"
        return (
            problem,
            "take fixed_shape, keep_aspect_ratio or scale_jitter, or no train.input_sizes",
        )
    # Before padding, which follows.
    height, width = resizer.height, resizer.width
    step = height // math.gcd(height, width)
    problem = f"an input of {size} rows in the proportions of {height} x {width} has no whole width"
    return problem, f"give multiples of {step}, such as {_multiples_near(size, step)}"


@rule(schema.Experiment)
def replicas_divide_the_batch(experiment: schema.Experiment) -> Remarks:
    """Replicas get equally many images."""
    replicas, (batch, name, parts) = experiment.devices.replicas, _images_at_once(experiment.train)
    if replicas >= 1 and batch >= 1 and batch % replicas:
        fix = (
            f"set train.batch_size to {_multiples_near(batch * parts, replicas * parts)}, "
            f"or replicas to {_divisor_below(batch, replicas)}"
        )
        yield Remark("devices.replicas", f"{name} cannot be divided among {replicas} replicas", fix)


@rule(schema.Experiment)
def groups_divide_the_batch(experiment: schema.Experiment) -> Remarks:
    """The size of groups that share statistics is given if they are used, and divides the batch."""
    batch, name, _ = _images_at_once(experiment.train)
    for path, norm in batch_norms(experiment.model):
        size, where = norm.group_size, f"{path}.group_size"
        if norm.statistics != "groups" and size > 0:
            problem = f"group_size {size} has no effect while statistics is {norm.statistics}"
            yield Remark(
                where, problem, f"{Setting(f'{path}.statistics', 'groups')}, or {Setting(where, 0)}"
            )
        elif norm.statistics == "groups" and size == 0:
            yield Remark(where, "statistics of groups of 0 images", f"for example {where}=8")
        elif norm.statistics == "groups" and size > 0 and batch > 0 and batch % size:
            problem = f"{name} cannot be divided into groups of {size}"
            yield Remark(where, problem, f"use {_divisor_below(batch, size)}")


def _images_at_once(train: schema.Training) -> tuple[int, str, int]:
    """Returns the images that a step normalises together, what they are, and their share."""
    parts, batch = train.accumulation_steps, train.batch_size
    # A number of steps that does not divide the batch is refused by a rule of its own.
    if parts <= 1 or batch % parts:
        return batch, f"a batch of {batch} (train.batch_size)", 1
    size = train.micro_batch_size
    return size, f"a micro-batch of {size} ({batch} / {parts} train.accumulation_steps)", parts


def _multiples_near(number: int, divisor: int) -> str:
    lower = number // divisor * divisor
    return f"{lower} or {lower + divisor}" if lower else f"{divisor}"


def _divisor_below(number: int, most: int) -> int:
    return next(part for part in range(min(most, number), 0, -1) if number % part == 0)


# Parts in which every sum and every convolution is rounded.
_PARTS = {
    "backbone": (schema.MobileNetV1, schema.MobileNetV2, schema.EfficientNetLite),
    "neck": (
        *(schema.SsdExtraLayers, schema.Fpn, schema.Ppn, schema.Identity, schema.MnasFpn),
        schema.BiFpn,
    ),
    "head": (schema.ConvolutionalHead, schema.WeightSharedHead, schema.GflHead, schema.AtssHead),
}


@rule(schema.Experiment)
def quantized_parts_are_covered(experiment: schema.Experiment) -> Remarks:
    """Every part of the detector rounds what integer arithmetic would."""
    if experiment.train.quantization is None:
        return
    model, path = experiment.model, "train.quantization"
    if not isinstance(model, schema.OneStage):
        yield Remark(path, f"a model of kind {model.kind} cannot be quantised", "set it to null")
        return
    for name, covered in _PARTS.items():
        part = model.parts[name]
        # Not a subclass of a user, which may do anything.
        if type(part) not in covered:
            kinds = ", ".join(cls.kind for cls in covered)
            problem = f"the {name} {part.kind!r} cannot be quantised"
            yield Remark(path, problem, f"set it to null, or take one of {kinds}")
    for name, conv in model.convolutions().items():
        if conv.group_norm is not None:
            fix = f"take batch_norm, with {Setting(f'model.{name}.group_norm', None)}"
            yield Remark(path, "group norm cannot be folded into kernels of integers", fix)
    # Products of maps are not rounded.
    if isinstance(model.backbone, schema.EfficientNetLite) and model.backbone.se_ratio > 0:
        yield Remark(path, "gates cannot be quantised", f"{Setting('model.backbone.se_ratio', 0)}")
    if isinstance(model.neck, schema.BiFpn) and model.neck.combine != "sum":
        problem = f"sums of the kind {model.neck.combine!r} cannot be quantised"
        yield Remark(path, problem, f"{Setting('model.neck.combine', 'sum')}")


@rule(schema.Evaluation)
def best_metric_is_computed(evaluation: schema.Evaluation) -> Remarks:
    """The best checkpoint is chosen by a number of one of the metrics."""
    if not evaluation.metrics:
        return
    others = {
        "VOC_mAP": "pascal_voc",
        "VOC_weighted_mAP": "weighted_pascal_voc",
        "OpenImages_mAP": "open_images",
    }
    metric = others.get(evaluation.best_metric, "coco")
    if metric not in evaluation.metrics:
        computed = next((key for key, name in others.items() if name in evaluation.metrics), "AP")
        yield Remark(
            "best_metric",
            f"best_metric {evaluation.best_metric} belongs to {metric}, which is not in "
            f"evaluation.metrics ({', '.join(evaluation.metrics)})",
            f"{Setting('evaluation.best_metric', computed)}, or add {metric} to evaluation.metrics",
        )


@rule(schema.Experiment)
def images_are_scored_once(experiment: schema.Experiment) -> Remarks:
    """An evaluation reads its records once; 0 means once as well."""
    if (epochs := experiment.data.evaluation.num_epochs) > 1:
        path = "data.evaluation.num_epochs"
        yield Remark(path, f"{path} is {epochs}", "give a value of at least 0 and at most 1")
    if experiment.data.evaluation.repeat_threshold:
        path = "data.evaluation.repeat_threshold"
        yield Remark(path, "an evaluation reads every image once", f"{Setting(path, 0)}")


@rule(schema.Evaluation)
def pictures_stay_below_the_results(evaluation: schema.Evaluation) -> Remarks:
    """The folder of exported pictures lies in the folder of the report or of the training run."""
    given = Path(evaluation.pictures_directory)
    if given.anchor or ".." in given.parts or not str(given).isprintable():
        problem = f"{evaluation.pictures_directory!r} leads out of the folder of the results"
        fix = (
            f"give a plain name such as exported; evaluate's {Parameter('output')} names the "
            "folder around it"
        )
        yield Remark("pictures_directory", problem, fix)


@rule(schema.Evaluation)
def truth_has_a_color(evaluation: schema.Evaluation) -> Remarks:
    """The colour of the ground truth exists."""
    color = evaluation.truth_color
    try:
        ImageColor.getrgb(color)
    except ValueError:
        guess = nearest(color.lower(), ImageColor.colormap)
        # The whole list of colours would fill a screen.
        fix = guess if guess.startswith("did you mean") else "give a name such as lime, or #rrggbb"
        yield Remark("truth_color", f"{color!r} is no colour", fix)
