"""AutoAugment for detection (arXiv:1906.11172; `tpu/models/official/detection/utils`)."""

from dataclasses import replace
from typing import cast

import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.autoaugment.operations import OPERATIONS, operate, take_step
from stillbox.inputs.augment.autoaugment.policies import POLICIES, Step, SubPolicy
from stillbox.inputs.augment.draws import random_integer
from stillbox.inputs.sample import Bytes, Sample

__all__ = ["OPERATIONS", "POLICIES", "Step", "SubPolicy", "auto_augment", "in_bytes", "operate"]


@implements(schema.AutoAugment)
def auto_augment(sample: Sample, config: schema.AutoAugment, rng: Generator) -> Sample:
    """Draws one row of the policy and applies its operations in order.

    float32 values are clipped and truncated to uint8 first.
    """
    rows = POLICIES[config.policy]
    sample = in_bytes(sample)
    for step in rows[random_integer(rng, 0, len(rows))]:
        sample = take_step(step, sample, rng, config.contrast)
    return sample


def in_bytes(sample: Sample) -> Sample:
    """Returns the sample with its pixels as contiguous uint8."""
    pixels = sample.image
    image = pixels if pixels.dtype == np.uint8 else pixels.clip(0, 255).astype(np.uint8)
    return replace(sample, image=np.ascontiguousarray(cast(Bytes, image)))
