"""Advice about experiments that no rule forbids; one small function for each check.

Rules (`experiment/rules`) refuse contradictions. Advice is about experiments that train badly,
about loss of data, and about fields without effect. A new check is a function and a line here.
"""

from stillbox.checking.advice import (
    averages,
    files,
    one_stage,
    penalties,
    quantization,
    schedules,
    scores,
    two_stage,
    unused,
)
from stillbox.checking.advice.advice import (
    Check,
    Findings,
    Origins,
    PartCheck,
    PartOf,
    Scoring,
)
from stillbox.experiment.schema import Experiment, FasterRcnn, OneStage


def _one_stage(experiment: Experiment) -> OneStage | None:
    return experiment.model if isinstance(experiment.model, OneStage) else None


def _two_stage(experiment: Experiment) -> FasterRcnn | None:
    return experiment.model if isinstance(experiment.model, FasterRcnn) else None


def _scoring(experiment: Experiment) -> Scoring | None:
    model = experiment.model
    if isinstance(model, OneStage):
        return Scoring("model", model.postprocessing, "model.loss", model.loss)
    if isinstance(model, FasterRcnn) and model.boxes is not None:
        return Scoring("model.boxes", model.boxes.postprocessing, "model.boxes", model.boxes)
    return None


PART_CHECKS: tuple[tuple[PartOf, tuple[PartCheck, ...]], ...] = (
    (
        _scoring,
        (
            scores.focal_loss_has_alpha,
            scores.scores_fit_the_loss,
            scores.losses_count,
            scores.curves_are_whole,
            scores.mining_is_static,
        ),
    ),
    (
        _one_stage,
        (
            one_stage.background_is_balanced,
            one_stage.bias_reaches_the_loss,
            one_stage.every_box_has_an_anchor,
            one_stage.static_forms_exist,
            one_stage.one_stage_dropout_drops,
            one_stage.scales_are_used,
        ),
    ),
    (
        _two_stage,
        (
            two_stage.proposals_have_anchors,
            two_stage.samples_have_anchors,
            two_stage.samples_have_positives,
            two_stage.anchors_fit_into_images,
            two_stage.anchors_stand_on_the_map,
            two_stage.crops_have_pixels,
            two_stage.classes_are_told_apart,
            two_stage.proposals_are_trained,
            two_stage.padding_is_there,
            two_stage.two_stage_dropout_drops,
        ),
    ),
)
"""Checks of parts of a model, with what finds the part."""
CHECKS: tuple[Check, ...] = (
    penalties.penalties_are_small,
    penalties.penalties_are_added,
    schedules.rate_fits_the_batch,
    schedules.a_high_rate_is_warmed_up,
    schedules.warm_up_ends,
    schedules.cosine_ends_with_training,
    schedules.rates_are_reached,
    schedules.epochs_last,
    averages.statistics_arrive,
    averages.statistics_have_a_batch,
    averages.statistics_have_weights,
    averages.averages_arrive,
    averages.averages_exist,
    quantization.rounding_is_trained,
    quantization.levels_are_exact,
    unused.clipping_clips,
    unused.first_weights_are_named,
    unused.evaluations_happen,
    files.checkpoint_fits,
    files.label_maps_fit,
    files.label_maps_agree,
    files.sets_differ,
    files.box_limit_is_chosen,
    unused.patterns_match,
)


def advise(experiment: Experiment, origins: Origins) -> Findings:
    """Yields the advice of all checks."""
    for find, checks in PART_CHECKS:
        part = find(experiment)
        if part is not None:
            for part_check in checks:
                yield from part_check(experiment, part, origins)
    for check in CHECKS:
        yield from check(experiment, origins)
