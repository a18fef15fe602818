"""The choice of recipe, batch and length: every rule with its reason, in this file alone."""

from dataclasses import dataclass
from itertools import takewhile

from stillbox.checking.choosing.facts import Facts
from stillbox.checking.memory.machine import Machine
from stillbox.checking.memory.verdict import fits_for_certain
from stillbox.experiment.run_length import with_batch
from stillbox.experiment.schema import Experiment
from stillbox.printing import count_text

SMALL, PYRAMID, LARGE = (
    "ssd_mobilenet_v1_bccd",
    "ssd_mobilenet_v1_fpn_640x640",
    "ssd_resnet50_v1_fpn_640x640",
)
# The least box of the small recipe's anchors is .08 of the image; boxes of half of that have no
# anchor at an IoU of .5 (docs/checking.md), and are 12 pixels at 300x300.
_LEAST_SIDE = 0.04
# A ResNet-50 needs many images before it is better than a MobileNet, and an accelerator.
_MANY_IMAGES = 5000
# Below 8 images the statistics of batch norm are noise (arXiv:1803.08494); the largest published
# rates of the linear rule that need no more than the usual warm-up are for 64.
_BATCHES, _LEAST_BATCH = (64, 32, 16, 8, 4, 2, 1), 8
_CPU_BATCH = 16
# Steps of an epoch that a batch should leave.
_STEPS_OF_AN_EPOCH = 8
# Images up to which a run has so many epochs: few images need many passes, and COCO's 118,000 have
# 12 epochs in most published runs.
_EPOCHS = ((500, 80), (2000, 50), (10_000, 30), (50_000, 18))
_MOST_IMAGES_EPOCHS = 12
# Fewer steps do not warm batch norm up.
_LEAST_STEPS = 300
_EVALUATIONS = 10


@dataclass(frozen=True)
class Choice:
    """A value and the reason for it."""

    value: str
    reason: str


def choose_recipe(facts: Facts, machine: Machine) -> Choice:
    """Returns the name of the recipe for a data set on a machine."""
    if facts.small_side < _LEAST_SIDE:
        side = f"one box in ten is smaller than {100 * _LEAST_SIDE:.0f} % of the image"
        return Choice(PYRAMID, f"{side}, which needs an input of 640 x 640 and a feature pyramid")
    if machine.platform == "cpu":
        return Choice(SMALL, "the boxes are large enough for 300 x 300, the fastest on a CPU")
    if facts.images >= _MANY_IMAGES:
        return Choice(LARGE, f"{count_text(facts.images, 'image')}: enough for a ResNet-50")
    return Choice(PYRAMID, f"{count_text(facts.images, 'image')}: few for a ResNet-50")


def choose_batch(experiment: Experiment, facts: Facts, machine: Machine) -> Choice:
    """Returns the largest usual batch that suits the data and fits the machine for certain."""
    most = min(_BATCHES[0], facts.images // _STEPS_OF_AN_EPOCH)
    reason = f"at least {_STEPS_OF_AN_EPOCH} steps an epoch, and as large as usual"
    if most < _LEAST_BATCH:
        most, reason = _LEAST_BATCH, "batch norm needs as many images"
    if machine.platform == "cpu" and most > _CPU_BATCH:
        most, reason = _CPU_BATCH, "larger ones are no faster on a CPU"
    # Every device gets as many images.
    sizes = [size * machine.devices for size in _BATCHES if size * machine.devices <= most]
    sizes = sizes or [machine.devices]
    refused = list(
        takewhile(
            lambda size: not fits_for_certain(with_batch(experiment, size), machine), sizes[:-1]
        )
    )
    if refused:
        reason = f"{refused[-1]} may need more memory than there is"
    return Choice(str(sizes[len(refused)]), reason)


def choose_epochs(facts: Facts, batch_size: int) -> Choice:
    """Returns the number of passes over the training images."""
    epochs = next((n for most, n in _EPOCHS if facts.images <= most), _MOST_IMAGES_EPOCHS)
    least = -(-_LEAST_STEPS * batch_size // facts.images)
    if least > epochs:
        return Choice(str(least), f"{_LEAST_STEPS} steps, the least that settles batch norm")
    return Choice(
        str(epochs), f"usual for {count_text(facts.images, 'image')}; --epochs changes it"
    )


def evaluate_every(steps: int, facts: Facts, batch_size: int) -> int:
    """Returns the steps between two evaluations: at most ten in a run, at least one epoch apart."""
    return max(steps // _EVALUATIONS, -(-facts.images // batch_size))
