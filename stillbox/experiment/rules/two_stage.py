"""Rules about the second stage of two-stage models."""

from collections.abc import Iterator

from stillbox.experiment.rules.rule import Broken, rule
from stillbox.experiment.schema import CropAndResize


@rule(CropAndResize)
def pooling_fits_the_crop(crop: CropAndResize) -> Iterator[Broken]:
    """Max pooling is not padded."""
    if crop.pool_size > crop.size >= 1:
        what = f"pool_size {crop.pool_size} is more than the crop's {crop.size} rows and columns"
        yield Broken("pool_size", what, f"at most {crop.size}")
