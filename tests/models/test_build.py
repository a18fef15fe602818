"""What the builder refuses, and that every part of the schema is implemented."""

from dataclasses import dataclass, replace

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import Variant, implementation_of
from stillbox.inputs import resize  # noqa: F401 - registers resizers
from stillbox.models.build import build_detector
from stillbox.training import optimizer  # noqa: F401 - registers optimisers and schedules
from tests.models.conftest import CONFIG1


def test_anchors_for_another_number_of_maps_are_refused():
    model = replace(CONFIG1, anchors=schema.SsdAnchors(num_layers=5))
    with pytest.raises(UserError, match="anchors are described for 5 feature maps") as caught:
        build_detector(model)
    assert caught.value.where == "model.anchors"


FAMILIES = [
    family
    for family in Variant.__subclasses__()
    # tests/inputs/augment checks augmentations.
    if family is not schema.Augmentation
]


@pytest.mark.parametrize(
    "member",
    [
        member
        for family in FAMILIES
        for member in family.variants.values()
        if member.__module__.startswith("stillbox.")
    ],
    ids=lambda member: f"{member.__base__.__name__}-{member.kind}",
)
def test_every_member_of_every_family_has_an_implementation(member):
    assert callable(implementation_of(member()))


@dataclass(frozen=True, kw_only=True)
class Unimplemented(schema.ClassificationLoss, kind="sigmoid_focul"):
    """A loss without a function."""


# Otherwise it would be part of the schema in all tests of this process.
del schema.ClassificationLoss.variants["sigmoid_focul"]


def test_a_kind_without_an_implementation_is_refused_with_the_nearest_name():
    with pytest.raises(UserError) as caught:
        implementation_of(Unimplemented())
    assert "the kind 'sigmoid_focul' has no implementation" in caught.value.what
    assert "did you mean 'sigmoid_focal'" in caught.value.fix
