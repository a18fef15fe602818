"""Any value for any field is taken or refused."""

import pytest

from stillbox.errors import UserError
from stillbox.experiment.rules import check
from stillbox_legacy.model_garden import keys as garden
from stillbox_legacy.model_garden import read_garden
from stillbox_legacy.model_garden.section import CHOICES
from tests.experiment.test_robustness import VALUES


def in_use(path):
    """Returns the overrides that choose the sections around a field."""
    inside = (choice for choice in CHOICES if path.startswith(f"{choice}."))
    kinds = {choice: path.removeprefix(f"{choice}.").split(".") for choice in inside}
    return "".join(f"{choice}.type={kind[0]}, " for choice, kind in kinds.items() if kind[1:])


@pytest.mark.parametrize("path", garden.FIELDS)
def test_any_value_for_any_field_of_model_garden_is_taken_or_refused(path):
    for value in VALUES:
        override = f"{in_use(path)}{path}={value}"
        try:
            reading = read_garden(experiment="retinanet_resnetfpn_coco", params_override=override)
            check(reading.experiment, reading.origins)
        except UserError as error:
            assert error.where, error
