"""Losses of a pipeline.config."""

from functools import partial

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.losses import read_loss
from tests.experiment.sections import members_of, read_section

LOSS = """
loss {
  classification_loss { %s }
  localization_loss { %s }
  %s
}
"""
ssd_loss = partial(read_section, read_loss, "Ssd")


def loss_of(classification="weighted_sigmoid {}", localization="weighted_smooth_l1 {}", rest=""):
    return ssd_loss(LOSS % (classification, localization, rest))


CLASSIFICATION = [
    ("weighted_sigmoid {}", schema.SigmoidLoss()),
    ("weighted_sigmoid_focal {}", schema.SigmoidFocalLoss(gamma=2.0, alpha=None)),
    ("weighted_sigmoid_focal { alpha: 0 }", schema.SigmoidFocalLoss(gamma=2.0, alpha=0.0)),
    ("weighted_softmax { logit_scale: 2 }", schema.SoftmaxLoss(logit_scale=2.0)),
    ("weighted_logits_softmax {}", schema.SoftmaxAgainstLogitsLoss(logit_scale=1.0)),
    (
        "weighted_logits_softmax { logit_scale: 3 }",
        schema.SoftmaxAgainstLogitsLoss(logit_scale=3.0),
    ),
    ("bootstrapped_sigmoid {}", schema.BootstrappedSigmoidLoss(alpha=0.0, hard=False)),
    (
        "bootstrapped_sigmoid { alpha: 0.9 hard_bootstrap: true }",
        schema.BootstrappedSigmoidLoss(alpha=0.9, hard=True),
    ),
]


@pytest.mark.parametrize(("text", "loss"), CLASSIFICATION)
def test_a_classification_loss_reads(text, loss):
    assert loss_of(text)[0].classification == loss


LOCALIZATION = [
    ("weighted_smooth_l1 { delta: 0.5 }", schema.SmoothL1Loss(delta=0.5)),
    ("weighted_l2 {}", schema.L2Loss()),
    ("l1_localization_loss {}", schema.L1Loss()),
    ("weighted_iou {}", schema.IouLoss()),
    ("weighted_giou {}", schema.GiouLoss()),
]


@pytest.mark.parametrize(("text", "loss"), LOCALIZATION)
def test_a_localisation_loss_reads(text, loss):
    assert loss_of(localization=text)[0].localization == loss


@pytest.mark.parametrize(
    ("family", "cases"),
    [
        (schema.ClassificationLoss, CLASSIFICATION),
        (schema.LocalizationLoss, LOCALIZATION),
    ],
)
def test_the_cases_above_are_all_losses(family, cases):
    assert {type(loss) for _, loss in cases} == set(members_of(family))


@pytest.mark.parametrize("name", ["weighted_logits_softmax", "bootstrapped_sigmoid"])
def test_the_form_of_the_originals_output_has_no_effect(name):
    _, log = loss_of(f"{name} {{ anchorwise_output: true }}")
    (note,) = log.notes
    assert "anchorwise_output has no effect here: the loss is the same sum either way" in note


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rest": "random_example_sampler {}"}, "Loss.random_example_sampler: training with a r"),
        ({"rest": "equalization_loss { weight: 1 }"}, "Loss.equalization_loss: the equalization"),
        (
            {"rest": "expected_loss_weights: EXPECTED_SAMPLING"},
            "Loss.expected_loss_weights = EXPECTED_SAMPLING: expected-sampling weights",
        ),
        (
            {"classification": "penalty_reduced_logistic_focal_loss {}"},
            "penalty_reduced_logistic_focal_loss: it compares heat maps",
        ),
        (
            {"classification": "weighted_dice_classification_loss {}"},
            "weighted_dice_classification_loss: it compares heat maps or masks, which only Cent",
        ),
    ],
)
def test_what_there_is_not_is_refused_with_a_reason(arguments, message):
    with pytest.raises(UserError) as caught:
        loss_of(**arguments)
    assert message in str(caught.value)
    assert caught.value.where.startswith("p:")


def test_confidences_as_targets_are_refused_with_a_reason():
    text = LOSS % ("weighted_sigmoid {}", "weighted_l2 {}", "")
    with pytest.raises(UserError, match="use_confidences_as_targets = true: confidences of label"):
        ssd_loss("use_confidences_as_targets: true" + text)
