"""`DetectionModel`: the choice of a meta-architecture."""

from stillbox.experiment.pipeline_config.faster_rcnn import read_faster_rcnn
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.pipeline_config.ssd import read_ssd
from stillbox.experiment.schema import Model

_READERS = {"ssd": read_ssd, "faster_rcnn": read_faster_rcnn}


def read_model(section: MessageSection) -> Model:
    """Reads `model`."""
    name = section.member("model", _READERS)
    return _READERS[name](section.child(name))


def extractor_of(section: MessageSection) -> MessageSection:
    """Returns `feature_extractor` of `model`."""
    name = section.member("model", _READERS)
    return section.child(name).child("feature_extractor")
