"""Rules about the loss `quality` and its heads, matchers and box coders."""

import pytest

from stillbox.experiment.resolve import resolve
from tests.helpers import refusal

CASES = [
    ("gfl_resnet50", "model.loss.kind=matched", "the box coder distribution writes a box as"),
    ("atss_resnet50", "model.loss.kind=matched", "the head atss predicts centerness"),
    ("retinanet", "model.matcher.kind=task_aligned", "the matcher task_aligned compares boxes"),
    ("retinanet", "model.box_coder.kind=distribution", "writes a box as distributions"),
    ("gfl_resnet50", "model.loss.class_targets=alignment", "class_targets alignment with the mat"),
    ("gfl_resnet50", "model.loss.box_weights=alignment", "box_weights alignment with the matche"),
    ("gfl_resnet50", "model.box_coder.kind=distances", "distribution_weight 0.25 with the box"),
    ("gfl_resnet50", "model.head.kind=atss", "whose centerness would not be trained"),
    ("gfl_resnet50", "model.loss.centerness_weight=1", "centerness_weight 1 with the head gfl"),
    ("gfl_resnet50", "model.background_class=true", "has no class for the background, whose ta"),
    ("gfl_resnet50", "model.similarity.kind=ioa", "the matcher atss compares boxes by iou"),
    ("tood_resnet50", "model.similarity.kind=ioa", "the matcher task_aligned compares boxes by"),
    ("tood_resnet50", "model.box_coder.kind=faster_rcnn", "a task_aligned head predicts distances"),
    ("gfl_resnet50", "model.loss.localization.kind=smooth_l1", "smooth_l1 compares codes"),
    ("gfl_resnet50", "model.loss.classification.kind=softmax", "the loss softmax has a class for"),
    ("gfl_resnet50", "model.loss.classification.kind=sigmoid_focal", "class_targets overlap with"),
    ("tood_resnet50", "model.loss.initial.classification.kind=softmax", "the loss softmax has a c"),
    ("tood_resnet50", "model.loss.initial.box_weights=alignment", "the first steps compare no pr"),
    ("gfl_resnet50", "model.head.conv.batch_norm={}", "group_norm beside batch_norm"),
    ("gfl_resnet50", "train.quantization={}", "group norm cannot be folded into kernels"),
    ("tood_resnet50", "train.quantization={}", "the head 'task_aligned' cannot be quantised"),
    ("gfl_resnet50", "model.head.conv.group_norm.groups=0", "groups is 0"),
    ("tood_resnet50", "train.distillation={}", "the box coder distances has no distributions"),
    ("faster_rcnn_resnet101_coco", "train.distillation={}", "a faster_rcnn has no distributions"),
    ("gfl_resnet50", "train.distillation.weight=0", "weight is 0"),
    (
        "faster_rcnn_resnet50_v1_640x640",
        "model.proposals.matcher.kind=task_aligned",
        "task_aligned chooses among the anchors of the feature maps",
    ),
    (
        "faster_rcnn_resnet50_v1_640x640",
        "model.boxes.box_coder.kind=distribution",
        "the box coder distribution belongs to the loss quality",
    ),
    (
        "faster_rcnn_resnet50_v1_640x640",
        "model.boxes.postprocessing.nms.max_candidates_per_level=9",
        "whose boxes have no levels",
    ),
]


@pytest.mark.parametrize(("recipe", "change", "message"), CASES)
def test_contradictions_are_refused(recipe, change, message):
    assert message in str(refusal(resolve, recipe, [change]))


def test_group_norm_and_masked_padding_exclude_each_other():
    changes = [
        "model.mask_padding=true",
        "model.backbone.conv.batch_norm=null",
        "model.backbone.conv.group_norm={}",
    ]
    error = refusal(resolve, "faster_rcnn_resnet101_coco", changes)
    assert "group_norm counts padding" in str(error)
