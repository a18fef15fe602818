"""Advice about experiments that no rule forbids; one small function for each check.

Rules (`experiment/rules`) refuse contradictions. Advice is about experiments that train badly,
about loss of data, and about fields without effect. A new check is a function and a line here.
"""

from stillbox.checking.advice import averages, files, one_stage, schedules, unused
from stillbox.checking.advice.advice import Advice, Check, Findings, OneStageCheck, Origins
from stillbox.experiment.schema import Experiment, OneStage

ONE_STAGE_CHECKS: tuple[OneStageCheck, ...] = (
    one_stage.background_is_balanced,
    one_stage.focal_loss_has_alpha,
    one_stage.scores_fit_the_loss,
    one_stage.bias_reaches_the_loss,
    one_stage.losses_count,
    one_stage.penalties_are_small,
    one_stage.penalties_are_added,
    one_stage.every_box_has_an_anchor,
    one_stage.curves_are_whole,
    one_stage.static_forms_exist,
    one_stage.dropout_drops,
    one_stage.scales_are_used,
    averages.statistics_arrive,
    averages.statistics_have_a_batch,
)
CHECKS: tuple[Check, ...] = (
    schedules.rate_fits_the_batch,
    schedules.a_high_rate_is_warmed_up,
    schedules.warm_up_ends,
    schedules.cosine_ends_with_training,
    schedules.rates_are_reached,
    schedules.epochs_last,
    averages.averages_arrive,
    averages.averages_exist,
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
    if isinstance(experiment.model, OneStage):
        for one_stage_check in ONE_STAGE_CHECKS:
            yield from one_stage_check(experiment, experiment.model, origins)
    for check in CHECKS:
        yield from check(experiment, origins)


__all__ = ["CHECKS", "ONE_STAGE_CHECKS", "Advice", "advise"]
