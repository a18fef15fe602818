"""AutoAugment for detection (arXiv:1906.11172; TPU detection fact sheet 4)."""

from dataclasses import replace
from typing import cast

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.experiment.schema import AutoAugment
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.autoaugment.operations import OPERATIONS, operate, take_step
from stillbox.inputs.augment.autoaugment.policies import POLICIES, Row, Step
from stillbox.inputs.augment.draws import whole_number
from stillbox.inputs.sample import Sample

Bytes = NDArray[np.uint8]

__all__ = ["OPERATIONS", "POLICIES", "Row", "Step", "auto_augment", "in_bytes", "operate"]


@implements(AutoAugment)
def auto_augment(sample: Sample, settings: AutoAugment, rng: Generator) -> Sample:
    """Draws one row of the policy and applies its operations in order.

    Values that are no bytes are clipped and cut to whole numbers first.
    """
    rows = POLICIES[settings.policy]
    sample = in_bytes(sample)
    for step in rows[whole_number(rng, 0, len(rows))]:
        sample = take_step(step, sample, rng, settings.contrast)
    return sample


def in_bytes(sample: Sample) -> Sample:
    """Returns the sample with its pixels as uint8, one after the other in memory."""
    pixels = sample.image
    image = pixels if pixels.dtype == np.uint8 else pixels.clip(0, 255).astype(np.uint8)
    return replace(sample, image=np.ascontiguousarray(cast(Bytes, image)))
