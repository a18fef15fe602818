"""Rules about the loss `quality`, and about heads, matchers, box coders and teachers for it."""

from stillbox.experiment import schema
from stillbox.experiment.rules.boxes import BOX_LOSSES
from stillbox.experiment.rules.rule import Remark, Remarks, rule
from stillbox.experiment.variants import RegisteredConfig
from stillbox.references import Setting

_SIGMOIDS = schema.SigmoidLoss | schema.SigmoidFocalLoss
_QUALITIES = schema.QualityFocalLoss | schema.VarifocalLoss


@rule(schema.OneStage)
def predictions_are_compared(model: schema.OneStage) -> Remarks:
    """Parts that are compared with predictions, or trained by them, need the loss `quality`."""
    if isinstance(model.loss, schema.QualityLoss):
        return
    reasons: dict[str, tuple[type[RegisteredConfig], str, str]] = {
        "matcher": (
            schema.TaskAlignedMatcher,
            "compares boxes with predictions, which the loss matched does not provide",
            f"{Setting('model.loss.kind', 'quality')}, or take argmax or atss",
        ),
        "box_coder": (
            schema.DistributionBoxCoder,
            "writes a box as distributions, which the loss matched cannot compare",
            f"{Setting('model.loss.kind', 'quality')}, or take the coder distances",
        ),
        "head": (
            schema.AtssHead,
            "predicts centerness, which the loss matched does not train",
            f"{Setting('model.loss.kind', 'quality')}, or take gfl",
        ),
    }
    for name, (kind, problem, fix) in reasons.items():
        if isinstance(getattr(model, name), kind):
            part = f"the {name.replace('_', ' ')} {kind.kind}"
            yield Remark(f"{name}.kind", f"{part} {problem}", fix)


@rule(schema.RPN, schema.RoIHead)
def two_stages_match_by_boxes(stage: schema.RPN | schema.RoIHead) -> Remarks:
    """Matchers of feature maps and predictions, and distributions, belong to one stage."""
    if isinstance(stage.matcher, schema.AtssMatcher | schema.TaskAlignedMatcher):
        problem = (
            f"{stage.matcher.kind} chooses among the anchors of the feature maps of a one-stage "
            "detector"
        )
        yield Remark("matcher.kind", problem, "take argmax")
    if isinstance(stage.box_coder, schema.DistributionBoxCoder):
        problem = "the box coder distribution belongs to the loss quality of a one-stage detector"
        yield Remark("box_coder.kind", problem, "take faster_rcnn")


@rule(schema.OneStage)
def matchers_compare_overlaps(model: schema.OneStage) -> Remarks:
    """ATSS has thresholds of IoUs, and task-aligned matching computes its own."""
    adaptive = schema.AtssMatcher | schema.TaskAlignedMatcher
    if isinstance(model.matcher, adaptive) and not isinstance(
        model.similarity, schema.IouSimilarity
    ):
        problem = (
            f"the matcher {model.matcher.kind} compares boxes by iou, and similarity is "
            f"{model.similarity.kind}"
        )
        yield Remark("similarity.kind", problem, f"{Setting('model.similarity.kind', 'iou')}")


@rule(schema.OneStage)
def quality_fits_the_model(model: schema.OneStage) -> Remarks:
    """Parts of the loss need what they compare."""
    loss = model.loss
    if not isinstance(loss, schema.QualityLoss):
        return
    aligned = isinstance(model.matcher, schema.TaskAlignedMatcher)
    for name in ("class_targets", "box_weights"):
        if getattr(loss, name) == "alignment" and not aligned:
            problem = f"{name} alignment with the matcher {model.matcher.kind}, which measures none"
            fix = (
                f"{Setting('model.matcher.kind', 'task_aligned')}, or another of model.loss.{name}"
            )
            yield Remark(f"loss.{name}", problem, fix)
    distribution = isinstance(model.box_coder, schema.DistributionBoxCoder)
    if loss.distribution_weight and not distribution:
        yield Remark(
            "loss.distribution_weight",
            f"distribution_weight {loss.distribution_weight:g} with the box coder "
            f"{model.box_coder.kind}, which has no distributions",
            f"{Setting('model.loss.distribution_weight', 0)}, or "
            f"{Setting('model.box_coder.kind', 'distribution')}",
        )
    centers = isinstance(model.head, schema.AtssHead)
    if bool(loss.centerness_weight) != centers:
        problem = f"centerness_weight {loss.centerness_weight:g} with the head {model.head.kind}"
        fix = (
            f"{Setting('model.head.kind', 'atss')}, or {Setting('model.loss.centerness_weight', 0)}"
        )
        if centers:
            problem += ", whose centerness would not be trained"
            other = Setting("model.head.kind", "gfl")
            fix = f"{Setting('model.loss.centerness_weight', 1)}, or {other}"
        yield Remark("loss.centerness_weight", problem, fix)
    if model.background_class:
        problem = (
            "the loss quality has no class for the background, whose target is 0 in all classes"
        )
        yield Remark("background_class", problem, f"{Setting('model.background_class', False)}")


@rule(schema.OneStage)
def task_aligned_head_has_distances(model: schema.OneStage) -> Remarks:
    """The head moves edges, and so has to know where they are."""
    if not isinstance(model.head, schema.TaskAlignedHead):
        return
    if type(model.box_coder) is not schema.DistanceBoxCoder:
        problem = f"a task_aligned head predicts distances, and the coder is {model.box_coder.kind}"
        yield Remark("box_coder.kind", problem, f"{Setting('model.box_coder.kind', 'distances')}")
        return
    anchors, units = model.anchors, model.box_coder.units_in_anchor
    if not isinstance(anchors, schema.MultiscaleAnchors):
        problem = f"a task_aligned head needs anchors of strides, and the kind is {anchors.kind}"
        yield Remark("anchors.kind", problem, f"{Setting('model.anchors.kind', 'multiscale')}")
    elif anchors.anchor_scale != units or anchors.aspect_ratios != (1.0,):
        problem = (
            "a task_aligned head predicts distances in strides, which requires square anchors of "
            f"units_in_anchor strides: anchor_scale is {anchors.anchor_scale:g}, units_in_anchor "
            f"{units:g}, aspect_ratios {list(anchors.aspect_ratios)}"
        )
        fix = (
            f"{Setting('model.anchors.anchor_scale', f'{units:g}')} "
            f"{Setting('model.anchors.aspect_ratios', [1])}"
        )
        yield Remark("anchors", problem, fix)


@rule(schema.QualityLoss)
def quality_losses_are_comparable(loss: schema.QualityLoss) -> Remarks:
    """Boxes are compared as boxes, and classes one by one."""
    if not isinstance(loss.localization, BOX_LOSSES):
        problem = f"{loss.localization.kind} compares codes, and the loss quality compares boxes"
        yield Remark("localization.kind", problem, "take giou, iou, diou or ciou")
    yield from _sigmoid("classification", loss.classification)
    if loss.class_targets != "one" and not isinstance(loss.classification, _QUALITIES):
        problem = f"class_targets {loss.class_targets} with the loss {loss.classification.kind}"
        fix = f"{Setting('model.loss.class_targets', 'one')}, or take quality_focal or varifocal"
        yield Remark("class_targets", problem, fix)
    if loss.initial is not None:
        yield from _sigmoid("initial.classification", loss.initial.classification)
        if loss.initial.box_weights == "alignment":
            problem = "the first steps compare no predictions, and so have no alignment"
            yield Remark("initial.box_weights", problem, "take centerness, score or one")


def _sigmoid(path: str, loss: schema.ClassificationLoss) -> Remarks:
    if not isinstance(loss, _SIGMOIDS | _QUALITIES):
        problem = (
            f"the loss {loss.kind} has a class for the background, and the loss quality has none"
        )
        yield Remark(f"{path}.kind", problem, "take quality_focal, varifocal or sigmoid_focal")


@rule(schema.ConvHyperparams)
def norms_exclude_each_other(conv: schema.ConvHyperparams) -> Remarks:
    """A layer is normalised once."""
    if conv.batch_norm is not None and conv.group_norm is not None:
        yield Remark("group_norm", "group_norm beside batch_norm", "set one of them to null")


@rule(schema.FasterRcnn)
def crops_have_no_levels(model: schema.FasterRcnn) -> Remarks:
    """The boxes of the second stage belong to no feature map."""
    stage = model.boxes
    if stage is not None and stage.postprocessing.nms.max_candidates_per_level:
        problem = "max_candidates_per_level in a detector of two stages, whose boxes have no levels"
        fix = f"{Setting('model.boxes.postprocessing.nms.max_candidates_per_level', 0)}"
        yield Remark("boxes.postprocessing.nms.max_candidates_per_level", problem, fix)


@rule(schema.FasterRcnn)
def group_norm_counts_no_padding(model: schema.FasterRcnn) -> Remarks:
    """The mask of the padding does not reach the statistics of group norm."""
    for path, conv in model.convolutions().items():
        if model.mask_padding and conv.group_norm is not None:
            problem = "group_norm counts padding, which mask_padding leaves out"
            fix = f"{Setting('model.mask_padding', False)}, or take batch_norm"
            yield Remark(f"{path}.group_norm", problem, fix)


@rule(schema.Experiment)
def teachers_teach_distributions(experiment: schema.Experiment) -> Remarks:
    """A teacher's distributions are compared with the model's."""
    model, path = experiment.model, "train.distillation"
    if experiment.train.distillation is None:
        return
    without = f"{Setting(path, None)} trains without a teacher"
    if not isinstance(model, schema.OneStage):
        yield Remark(path, f"a {model.kind} has no distributions of boxes to be taught", without)
    elif not isinstance(model.box_coder, schema.DistributionBoxCoder):
        problem = f"the box coder {model.box_coder.kind} has no distributions to be taught"
        yield Remark(
            path, problem, f"{Setting('model.box_coder.kind', 'distribution')}, or {without}"
        )


@rule(schema.Experiment, on="training")
def teacher_is_named(experiment: schema.Experiment) -> Remarks:
    """Distillation names a teacher."""
    distillation, path = experiment.train.distillation, "train.distillation"
    if distillation is not None and not distillation.teacher:
        fix = f"{Setting(f'{path}.teacher', 'DIR')}, a model directory, or {Setting(path, None)}"
        yield Remark(f"{path}.teacher", "distillation without a teacher", fix)
