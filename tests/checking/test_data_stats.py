"""Pixels in the statistics of records."""

import numpy as np
import pytest
from PIL import Image

from tests.checking.test_data import stats
from tests.inputs.helpers import saved
from tests.records.builders import image_bytes, make_example

BLACK = saved(Image.new("RGB", (60, 40)), "JPEG")


def test_images_of_few_values_are_counted(tmp_path):
    sky = np.zeros((40, 60), np.uint8)
    sky[17, 23] = 255  # an eighth of the size does not show it
    images = (BLACK, image_bytes(), saved(Image.fromarray(sky), "JPEG", quality=98))
    result = stats(tmp_path, [make_example(encoded=content) for content in images])
    assert (result.records, result.few_values, result.unusable) == (3, 1, 0)
    assert result.image_sizes == {"60 x 40": 3}


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_truncated_images_are_unusable(tmp_path, kind):
    whole = image_bytes(kind=kind)
    result = stats(tmp_path, [make_example(), make_example(encoded=whole[: len(whole) // 2])])
    assert (result.records, result.unusable) == (2, 1)
