"""What a neck asks of backbone, input and anchors."""

import pytest

from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve

RECIPE = "ssd_resnet50_v1_fpn_640x640"


def with_levels(low, high):
    return [
        f"model.{part}.{name}={level}"
        for part in ("neck", "anchors")
        for name, level in (("min_level", low), ("max_level", high))
    ]


def refused(*overrides):
    with pytest.raises(UserError) as caught:
        resolve(RECIPE, overrides)
    return caught.value


def test_the_backbones_levels_are_taken_as_they_are():
    neck = resolve(RECIPE, ["model.neck.kind=identity", *with_levels(4, 5)]).experiment.model.neck
    assert neck.count_maps() == 2


def test_the_backbone_has_every_level_that_is_taken_as_it_is():
    error = refused("model.neck.kind=identity")
    assert error.where == "model.neck.max_level"
    assert "max_level 7: the backbone's levels end at 5" in error.what
    assert "at most 5" in error.fix
