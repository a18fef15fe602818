"""From label map ids in records to class indices in batches, with both rules."""

from dataclasses import replace

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.inputs.loader import EvalLoader, TrainLoader
from tests.inputs.helpers import MODEL, dataset, example

CONTIGUOUS = replace(MODEL, num_classes=3, class_slots="contiguous")
# The label map of the helpers: disc is 1, ring 2, star 4.
BOXES = [[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1], [0, 0.5, 0.5, 1]]


def classes(folder, model, *augmentations):
    """The class indices of a batch of one image with a star, a disc and a ring."""
    data = dataset(folder, [example(0, BOXES, [4, 1, 2])], model=model, max_boxes=3)
    loader = TrainLoader(data, augmentations=augmentations, batch_size=1, workers=0)
    evaluated = next(iter(EvalLoader(data, batch_size=1, workers=0)))
    if not augmentations:
        assert evaluated.classes.tolist() == loader.batch(0).classes.tolist()
    return loader.batch(0).classes[0].tolist()


def test_a_gap_is_a_slot_or_is_closed(tmp_path):
    assert classes(tmp_path, MODEL) == [3, 0, 1]
    assert classes(tmp_path, CONTIGUOUS) == [2, 0, 1]


@pytest.mark.parametrize(("model", "star"), [(MODEL, 3), (CONTIGUOUS, 2)])
def test_augmentations_name_classes_by_label_map_id(tmp_path, model, star):
    remap = schema.RemapLabels(original_labels=(1, 2), new_label=4)
    assert classes(tmp_path, model, remap) == [star] * 3
    # Without the star the disc and the ring are left, and a place without a box.
    drop = schema.DropLabelProbabilistically(label=4, probability=1.0)
    assert classes(tmp_path, model, drop) == [0, 1, 0]


def test_a_class_in_a_gap_is_no_class_where_gaps_are_closed(tmp_path):
    remap = schema.RemapLabels(original_labels=(1,), new_label=3)
    assert classes(tmp_path, MODEL, remap) == [3, 2, 1]
    with pytest.raises(UserError, match=r"no class 3: the model has ids 1 to 2, 4") as caught:
        classes(tmp_path, CONTIGUOUS, remap)
    assert caught.value.where == "train.augmentations.0.new_label"
    assert caught.value.fix.endswith("labels.pbtxt")
