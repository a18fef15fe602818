"""Rules about augmentations, anchors, targets, losses and post-processing."""

import itertools
from collections.abc import Iterator, Sequence

from stillbox.experiment import schema
from stillbox.experiment.rules.rule import Remark, Remarks, rule, strong_augmentations
from stillbox.experiment.values import sections_of
from stillbox.printing import count_text
from stillbox.references import Setting


@rule(schema.Experiment)
def last_steps_exist(experiment: schema.Experiment) -> Remarks:
    """Training that leaves an augmentation out at its end has an end."""
    if experiment.train.steps or experiment.data.train.num_epochs:
        return
    for path, augmentation in strong_augmentations(experiment):
        if augmentation.skip_last_steps:
            steps = count_text(augmentation.skip_last_steps, "step")
            fix = "give train.steps or data.train.num_epochs, or "
            fix += f"{Setting(f'{path}.skip_last_steps', 0)}"
            problem = f"training without an end has no last {steps}"
            yield Remark(f"{path}.skip_last_steps", problem, fix)


@rule(schema.RandomPadImage)
def canvases_have_two_sides(section: schema.RandomPadImage) -> Remarks:
    """The original requires height and width together, or neither."""
    for end in ("min", "max"):
        names = f"{end}_height", f"{end}_width"
        given = [name for name in names if getattr(section, name) is not None]
        if len(given) == 1:
            (missing,) = set(names) - set(given)
            yield Remark(given[0], f"{given[0]} without {missing}", "give both or neither")


@rule(schema.NormalizeImage)
def values_have_a_range(section: schema.NormalizeImage) -> Remarks:
    """A range of one value cannot be mapped to another range."""
    low, high = section.original_min, section.original_max
    if low >= high:
        problem = f"original_max {high} is not above original_min {low}"
        yield Remark("original_max", problem, "for images as they are read: 255")


@rule(schema.SsdIouCrop)
def iou_crops_are_possible(section: schema.SsdIouCrop) -> Remarks:
    """There is a bound to draw, and a window can satisfy it: all bounds are excluded."""
    if not section.min_ious:
        fix = "leave them out for the usual ones; [-1] requires no IoU at all"
        yield Remark("min_ious", "ssd_iou_crop has no min_ious to choose from", fix)
    if 1 in section.min_ious:
        yield Remark("min_ious", "no window has an IoU above 1", "leave the 1 out")
    if section.max_aspect_ratio <= 1:
        problem = f"no window has both sides below {section.max_aspect_ratio} times the other"
        yield Remark("max_aspect_ratio", problem, "give more than 1; the usual one is 2")


@rule(schema.Experiment)
def labels_have_classes(experiment: schema.Experiment) -> Remarks:
    """No box gets a class that the model does not have."""
    classes, known = experiment.model.num_classes, experiment.model.class_slots == "label_map_id"
    for path, ids in named_labels(experiment.train.augmentations):
        # Contiguous slots have the label map's ids, which are known only with the records.
        if known and ids and max(ids) > classes:
            problem = f"there is no class {max(ids)}: the model has {classes}"
            yield Remark(path, problem, f"give label map ids from 1 to {classes}")
        if path.endswith("original_labels") and not ids:
            yield Remark(path, "remap_labels changes nothing", "name the classes")


def named_labels(
    augmentations: Sequence[schema.Augmentation],
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields path and label map ids of every field that names classes."""
    for path, section in sections_of(tuple(augmentations), "train.augmentations"):
        if isinstance(section, schema.DropLabelProbabilistically):
            yield f"{path}.label", (section.label,)
        elif isinstance(section, schema.RemapLabels):
            yield f"{path}.original_labels", section.original_labels
            yield f"{path}.new_label", (section.new_label,)


@rule(schema.SsdAnchors)
def one_map_has_a_scale(anchors: schema.SsdAnchors) -> Remarks:
    """A single feature map is no range of scales."""
    if anchors.num_layers == 1 and not anchors.scales:
        problem = "one feature map has no room between min_scale and max_scale"
        yield Remark("scales", problem, "give scales, one number")


@rule(schema.SsdAnchors)
def ssd_lists_have_one_value_a_map(anchors: schema.SsdAnchors) -> Remarks:
    """A list has a value for each map, or none."""
    for name in ("scales", "height_strides", "width_strides", "height_offsets", "width_offsets"):
        values = getattr(anchors, name)
        if values and len(values) != anchors.num_layers:
            problem = f"{name} has {count_text(len(values), 'value')} for "
            problem += count_text(anchors.num_layers, "feature map")
            yield Remark(name, problem, "one for each map, or none")


@rule(schema.SsdAnchors)
def ssd_strides_come_in_pairs(anchors: schema.SsdAnchors) -> Remarks:
    """A grid has a vertical and a horizontal distance, or neither."""
    pairs = {
        "strides": (anchors.height_strides, anchors.width_strides),
        "offsets": (anchors.height_offsets, anchors.width_offsets),
    }
    for name, (vertical, horizontal) in pairs.items():
        if bool(vertical) != bool(horizontal):
            given, missing = ("height", "width") if vertical else ("width", "height")
            problem = f"{given}_{name} without {missing}_{name}"
            yield Remark(f"{given}_{name}", problem, "give both or neither")


@rule(schema.AnchorGrid)
def grid_sizes_have_ratios(grid: schema.AnchorGrid) -> Remarks:
    """Sizes and aspect ratios of a grid are pairs."""
    if len(grid.sizes) != len(grid.aspect_ratios):
        yield Remark(
            "aspect_ratios",
            f"{count_text(len(grid.sizes), 'size')} and "
            f"{count_text(len(grid.aspect_ratios), 'aspect ratio')}",
            "give one aspect ratio for each size: an anchor has one of either",
        )


@rule(schema.DefaultBoxMap)
def default_boxes_grow(level: schema.DefaultBoxMap) -> Remarks:
    """The large square of a map is larger than its small one."""
    if level.next_size <= level.size:
        problem = f"next_size {level.next_size} is not above size {level.size}"
        yield Remark("next_size", problem, "give the size of the next map")


@rule(schema.ArgmaxMatcher)
def thresholds_are_ordered(matcher: schema.ArgmaxMatcher) -> Remarks:
    """The matcher's ignored band lies between background and match."""
    matched, unmatched = matcher.matched_threshold, matcher.unmatched_threshold
    if unmatched > matched:
        problem = f"unmatched_threshold {unmatched} is above matched_threshold {matched}"
        yield Remark("unmatched_threshold", problem, "lower it, or raise matched_threshold")
    # Swapping needs a band between the thresholds to swap with.
    if unmatched == matched and not matcher.negatives_lower_than_unmatched:
        yield Remark(
            "negatives_lower_than_unmatched",
            f"negatives_lower_than_unmatched false swaps background and ignored anchors, "
            f"but with both thresholds at {matched} no anchor would be background",
            "set it to true, or lower unmatched_threshold",
        )


@rule(schema.OneStage, schema.RPN, schema.RoIHead)
def thresholds_can_be_reached(
    stage: schema.OneStage | schema.RPN | schema.RoIHead,
) -> Remarks:
    """Overlaps lie in 0..1, and minus a distance is never above 0."""
    matcher = stage.matcher
    if not isinstance(matcher, schema.ArgmaxMatcher) or matcher.ignore_thresholds:
        return
    if isinstance(stage.similarity, schema.NegSqDistSimilarity):
        if matcher.matched_threshold > 0.0 and not matcher.force_match_for_each_row:
            yield Remark(
                "matcher.matched_threshold",
                f"neg_sq_dist is never above 0, so that with matched_threshold "
                f"{matcher.matched_threshold} no anchor would be matched",
                "lower it, such as to -0.01, or set ignore_thresholds",
            )
        return
    for name in ("matched_threshold", "unmatched_threshold"):
        value = getattr(matcher, name)
        if not 0.0 <= value <= 1.0:
            problem = f"{name} is {value}, but overlaps lie in 0..1"
            yield Remark(f"matcher.{name}", problem, "give a value of at least 0 and at most 1")


@rule(schema.Loss, schema.RoIHead)
def focal_loss_has_no_miner(loss: schema.Loss | schema.RoIHead) -> Remarks:
    """A focal loss and a miner select hard examples in contradictory ways."""
    if loss.hard_example_miner is not None and isinstance(
        loss.classification, schema.SigmoidFocalLoss
    ):
        problem = "hard_example_miner together with a focal loss: both choose the hard examples"
        yield Remark(
            "hard_example_miner", problem, "take the miner out, or use the plain sigmoid loss"
        )


@rule(schema.OneStage)
def every_class_has_a_weight(model: schema.OneStage) -> Remarks:
    """Weights are given for all classes or for none."""
    weights, count = model.loss.class_weights, model.num_classes
    if weights and len(weights) != count:
        problem = f"{len(weights)} class_weights for {count_text(count, 'class')}"
        fix = "give one for each class, in the order of their ids, or none"
        yield Remark("loss.class_weights", problem, fix)


@rule(schema.Loss)
def added_matches_are_divided_by(loss: schema.Loss) -> Remarks:
    """A number of matches is needed to add to."""
    if loss.added_matches and not loss.normalize_by_matches:
        yield Remark(
            "added_matches",
            f"added_matches {loss.added_matches} while normalize_by_matches is false: nothing is "
            "divided by the number of matches",
            f"{Setting('model.loss.added_matches', 0)}, or set normalize_by_matches to true",
        )


@rule(schema.Loss)
def moving_average_is_of_the_batch(loss: schema.Loss) -> Remarks:
    """The moving average of the matches is one number, for all images and all replicas."""
    if not loss.normalizer_momentum:
        return
    contradictions = {
        "normalize_by_matches is false": not loss.normalize_by_matches,
        "normalize_per_image is true": loss.normalize_by_matches and loss.normalize_per_image,
        "normalizer is per_replica": loss.normalizer == "per_replica",
    }
    for other in (other for other, holds in contradictions.items() if holds):
        name = other.partition(" ")[0]
        change = (
            f"{Setting('model.loss.normalizer', 'global')}"
            if name == "normalizer"
            else f"change {name}"
        )
        yield Remark(
            "normalizer_momentum",
            f"normalizer_momentum {loss.normalizer_momentum} while {other}: it averages the "
            "matches of a whole batch",
            f"{Setting('model.loss.normalizer_momentum', 0)}, or {change}",
        )


BOX_LOSSES = schema.IouLoss | schema.GiouLoss | schema.DiouLoss | schema.CiouLoss


@rule(schema.Loss)
def skipped_codes_are_compared(loss: schema.Loss) -> Remarks:
    """Losses of overlaps compare boxes, not codes."""
    if loss.skip_zero_codes and isinstance(loss.localization, BOX_LOSSES):
        problem = (
            f"skip_zero_codes together with {loss.localization.kind}, which compares whole boxes"
        )
        fix = f"{Setting('model.loss.skip_zero_codes', False)}, or take smooth_l1, l1 or l2"
        yield Remark("skip_zero_codes", problem, fix)


@rule(schema.OneStage)
def background_has_a_target(model: schema.OneStage) -> Remarks:
    """A one-hot target of the background needs a slot."""
    if not isinstance(model.loss, schema.Loss):
        return
    if not model.background_class and not model.loss.encode_background_as_zeros:
        problem = "without a background class there is no slot that a background target could fill"
        yield Remark(
            "background_class", problem, "set model.loss.encode_background_as_zeros to true"
        )


@rule(schema.Nms)
def nms_limits_are_ordered(nms: schema.Nms) -> Remarks:
    """A class has no more boxes than the image."""
    if nms.max_per_class > nms.max_total:
        problem = f"max_per_class {nms.max_per_class} is more than max_total {nms.max_total}"
        yield Remark("max_per_class", problem, "lower it, or raise max_total")


@rule(schema.Nms)
def soft_nms_drops_nothing(nms: schema.Nms) -> Remarks:
    """Soft NMS lowers scores and has no threshold of overlaps."""
    if nms.soft_sigma > 0.0 and nms.drop_at_threshold:
        problem = (
            "drop_at_threshold together with soft_sigma: soft NMS drops no box for its overlap"
        )
        yield Remark("drop_at_threshold", problem, "set one of them to its default")


@rule(schema.Nms)
def combined_nms_is_plain(nms: schema.Nms) -> Remarks:
    """`tf.image.combined_non_max_suppression` has no other variant."""
    if not nms.combined:
        return
    others = {
        "change_coordinate_frame": nms.change_coordinate_frame,
        "soft_sigma": nms.soft_sigma > 0.0,
        "class_agnostic": nms.class_agnostic,
    }
    for name in (name for name, given in others.items() if given):
        default = "0" if name == "soft_sigma" else "false"
        problem = f"{name} together with combined: combined NMS does not have it"
        yield Remark(name, problem, f"set {name} to {default}, or combined to false")
    if not nms.clip:
        problem = "clip false together with combined: combined NMS clips to the network input"
        yield Remark("clip", problem, "set clip to true, or combined to false")


@rule(schema.Nms)
def clipping_has_an_effect(nms: schema.Nms) -> Remarks:
    """Details of clipping need clipping."""
    for name, default in {"clip_to": "image", "clip_margin": 0.0, "clip_first": False}.items():
        value = getattr(nms, name)
        if not nms.clip and value != default:
            problem = f"{name} {value} while clip is false: nothing is clipped"
            yield Remark(name, problem, "take it out, or set clip to true")


@rule(schema.BoxEncodingsClip)
def encodings_are_clipped_to_a_range(clip: schema.BoxEncodingsClip) -> Remarks:
    """The range has more than one value."""
    if clip.min >= clip.max:
        problem = f"box_encodings_clip from {clip.min} to {clip.max} leaves one value, or none"
        yield Remark("min", problem, "give a min below max")


@rule(schema.CurveCalibration, schema.ClassCurve)
def calibration_curves_rise(
    curve: schema.CurveCalibration | schema.ClassCurve,
) -> Remarks:
    """A curve has points, and one value for each score."""
    if len(curve.scores) != len(curve.calibrated):
        problem = (
            f"{count_text(len(curve.scores), 'score')} and {len(curve.calibrated)} calibrated ones"
        )
        yield Remark("calibrated", problem, "give one for each")
    if not curve.scores:
        yield Remark("scores", "a curve without points", "give at least one")
    if any(first >= second for first, second in itertools.pairwise(curve.scores)):
        yield Remark("scores", "the scores of a curve do not rise", "sort the points")


@rule(schema.OneStage, schema.FasterRcnn)
def calibrated_slots_exist(model: schema.OneStage | schema.FasterRcnn) -> Remarks:
    """Calibration by class names slots of the head, each once."""
    # The second stage always has a slot of the background.
    boxes = model.boxes if isinstance(model, schema.FasterRcnn) else model
    calibration = boxes.postprocessing.calibration if boxes is not None else None
    path, last = "postprocessing.calibration", model.num_classes
    if isinstance(model, schema.FasterRcnn):
        path = f"boxes.{path}"
    elif not model.background_class:
        last -= 1
    if isinstance(calibration, schema.ClassCurveCalibration):
        name, slots = "curves", [curve.slot for curve in calibration.curves]
    elif isinstance(calibration, schema.ClassSigmoidCalibration):
        name, slots = "sigmoids", [sigmoid.slot for sigmoid in calibration.sigmoids]
    else:
        return
    seen: set[int] = set()
    for index, slot in enumerate(slots):
        place = f"{path}.{name}.{index}.slot"
        if not 0 <= slot <= last:
            yield Remark(place, f"there is no class slot {slot}", f"they are 0 to {last}")
        if slot in seen:
            yield Remark(place, f"class slot {slot} is calibrated twice", "take one of them out")
        seen.add(slot)
