"""Real records and photographs through the whole input pipeline."""

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.dataset import open_dataset
from stillbox.inputs.decode import decode_image
from stillbox.inputs.loader import EvalLoader, TrainLoader
from tests.shared import SHARED, needs_shared

AUGMENTATIONS = (schema.RandomHorizontalFlip(), schema.SsdRandomCrop())


@pytest.fixture(scope="module")
def raccoons():
    records = schema.Records(
        paths=(str(SHARED / "data/raccoon/data/test.record"),),
        label_map=str(SHARED / "data/raccoon/label_map.pbtxt"),
    )
    model = schema.OneStage(num_classes=1, resizer=schema.FixedShapeResizer(height=96, width=96))
    return open_dataset(schema.Data(), records, model)


@pytest.mark.proof
@needs_shared
def test_real_records_are_evaluated_completely(raccoons):
    loader = EvalLoader(raccoons, batch_size=16)
    batches = list(loader)
    records = np.concatenate([batch.records for batch in batches])
    assert records[records >= 0].tolist() == list(range(len(raccoons)))
    weights = np.concatenate([batch.weights for batch in batches])
    boxes = np.concatenate([batch.boxes for batch in batches])[weights > 0]
    assert len(boxes) == sum(len(raccoons.source.example(i).boxes) for i in range(len(raccoons)))
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert boxes.min() >= 0
    assert boxes.max() <= 1


@pytest.mark.proof
@needs_shared
def test_real_records_give_the_same_batches_with_any_number_of_threads(raccoons):
    runs = [
        list(
            TrainLoader(
                raccoons, augmentations=AUGMENTATIONS, batch_size=16, workers=workers
            ).iterate(0, 4)
        )
        for workers in (0, 4)
    ]
    for batch, other in zip(*runs, strict=True):
        assert all(
            left.tobytes() == right.tobytes() for left, right in zip(batch, other, strict=True)
        )
        inside = batch.boxes[batch.weights > 0]
        assert inside.min() >= 0
        assert inside.max() <= 1
        assert (inside[:, 2:] > inside[:, :2]).all()


@pytest.mark.proof
@needs_shared
@pytest.mark.parametrize("folder", ["bccd", "tiny_coco", "raccoon"])
def test_every_photograph_decodes(folder, capfd):
    paths = sorted((SHARED / "data" / folder).rglob("*.jpg"))
    assert len(paths) >= 100
    for path in paths:
        image = decode_image(path.read_bytes())
        assert image.dtype == np.uint8
        assert image.ndim == 3
        assert image.shape[2] == 3
    assert capfd.readouterr().err == ""
