"""Rules about the channels and bits of images."""

from stillbox.experiment import schema
from stillbox.experiment.rules.rule import Remark, Remarks, rule
from stillbox.experiment.values import sections_of
from stillbox.image_kind import RGB_8, ImageKind


@rule(schema.PixelNormalization)
def every_channel_is_normalised(pixels: schema.PixelNormalization) -> Remarks:
    """Mean and standard deviation have a number for each channel."""
    for name in ("mean", "std"):
        count = len(getattr(pixels, name))
        if count in (3, 4) and count != pixels.channels:
            problem = f"{name} has {count} numbers, and images have {pixels.channels} channels"
            yield Remark(name, problem, "give one for each channel")


@rule(schema.Experiment)
def augmentations_take_the_images(experiment: schema.Experiment) -> Remarks:
    """Some augmentations look values up in tables of 256, or need colours."""
    kind = experiment.model.image_kind
    for path, section in sections_of(experiment.train.augmentations, "train.augmentations"):
        taken = kind
        if isinstance(section, schema.AutoAugment):
            taken = RGB_8
        elif isinstance(section, schema.RandomJpegQuality):
            taken = ImageKind(kind.channels)
        if kind != taken:
            problem = f"{section.kind} takes images of {taken}, and model.pixels says {kind}"
            yield Remark(path, problem, "leave it out")


@rule(schema.Experiment)
def bits_are_kept(experiment: schema.Experiment) -> Remarks:
    """Whole numbers of 0..255 hold no more than 8 bits."""
    bits = experiment.model.image_kind.bits
    if bits > RGB_8.bits and experiment.data.pixels == "uint8":
        problem = f"uint8 rounds images of {bits} bits to 8"
        yield Remark("data.pixels", problem, "set data.pixels to float32")
