"""Which detectors quantisation-aware training covers."""

from collections.abc import Iterator

from stillbox.experiment.rules.rule import Broken, rule
from stillbox.experiment.schema import (
    ConvolutionalHead,
    Experiment,
    Fpn,
    Identity,
    MnasFpn,
    MobileNetV1,
    MobileNetV2,
    OneStage,
    Ppn,
    SsdLayers,
    WeightSharedHead,
)

# Parts in which every sum and every convolution is rounded.
_PARTS = {
    "backbone": (MobileNetV1, MobileNetV2),
    "neck": (SsdLayers, Fpn, Ppn, Identity, MnasFpn),
    "head": (ConvolutionalHead, WeightSharedHead),
}


@rule(Experiment)
def quantized_parts_are_covered(experiment: Experiment) -> Iterator[Broken]:
    """Every part of the detector rounds what integer arithmetic would."""
    if experiment.train.quantization is None:
        return
    model, path = experiment.model, "train.quantization"
    if not isinstance(model, OneStage):
        yield Broken(path, f"a model of kind {model.kind} cannot be quantised", "set it to null")
        return
    for name, covered in _PARTS.items():
        part = model.parts[name]
        # Not a subclass of a user, which may do anything.
        if type(part) not in covered:
            kinds = ", ".join(cls.kind for cls in covered)
            what = f"the {name} {part.kind!r} cannot be quantised"
            yield Broken(path, what, f"set it to null, or take one of {kinds}")
