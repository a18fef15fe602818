"""What the builder refuses, and that the registry knows every part of the schema."""

from dataclasses import replace

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.build import BACKBONES, HEADS, NECKS, build_detector
from tests.models.conftest import CONFIG1


def test_anchors_for_another_number_of_maps_are_refused():
    model = replace(CONFIG1, anchors=schema.SsdAnchors(num_layers=5))
    with pytest.raises(UserError, match="anchors are described for 5 feature maps") as caught:
        build_detector(model)
    assert caught.value.where == "model.anchors"


def test_every_part_of_the_schema_has_a_builder():
    assert schema.MobileNetV1 in BACKBONES
    assert schema.SsdLayers in NECKS
    assert schema.ConvolutionalHead in HEADS
