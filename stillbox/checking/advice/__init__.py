"""Advice about experiments that no rule forbids; one small function for each check.

Rules (`experiment/rules`) refuse contradictions. Advice is about experiments that train badly,
about loss of data, and about fields without effect. A new check is a function and a line here.
"""

from stillbox.checking.advice import (
    files,
    models,
    training,
)
from stillbox.checking.findings import Check, Findings, Origins, PartCheck, PartOf, Scoring
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
            models.focal_loss_has_alpha,
            models.scores_fit_the_loss,
            models.losses_count,
            models.curves_are_whole,
            models.mining_is_static,
        ),
    ),
    (
        _one_stage,
        (
            models.background_is_balanced,
            models.bias_reaches_the_loss,
            models.every_box_has_an_anchor,
            models.static_forms_exist,
            models.one_stage_dropout_drops,
            models.scales_are_used,
        ),
    ),
    (
        _two_stage,
        (
            models.proposals_have_anchors,
            models.samples_have_anchors,
            models.samples_have_positives,
            models.anchors_fit_into_images,
            models.anchors_stand_on_the_map,
            models.crops_have_pixels,
            models.classes_are_told_apart,
            models.proposals_are_trained,
            models.padding_is_there,
            models.two_stage_dropout_drops,
        ),
    ),
)
"""Checks of parts of a model, with what finds the part."""
CHECKS: tuple[Check, ...] = (
    training.penalties_are_small,
    training.penalties_are_added,
    training.rate_fits_the_batch,
    training.a_high_rate_is_warmed_up,
    training.warm_up_ends,
    training.cosine_ends_with_training,
    training.rates_are_reached,
    training.epochs_last,
    training.statistics_arrive,
    training.statistics_have_a_batch,
    training.statistics_have_weights,
    training.averages_arrive,
    training.averages_exist,
    training.rounding_is_trained,
    training.levels_are_exact,
    training.clipping_clips,
    training.first_weights_are_named,
    training.evaluations_happen,
    files.checkpoint_fits,
    files.label_maps_fit,
    files.label_maps_agree,
    files.sets_differ,
    files.box_limit_is_chosen,
    training.patterns_match,
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
