"""Detectors whose images are cut among devices learn what one device learns."""

import numpy as np
import pytest

from tests.training.eight_devices import see

pytestmark = [pytest.mark.proof, pytest.mark.slow]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Takes five minutes of a processor: programs for two axes are slow to compile."""
    return see("spatial", tmp_path_factory.mktemp("devices") / "seen.pickle")


# Maps of 3 rows on 2 and 4 devices, and of 2 on 4: what XLA divides unevenly goes wrong in its
# gradients alone, and only where the batch is divided as well.
@pytest.mark.parametrize("grid", ["1 x 2", "1 x 4", "4 x 2", "2 x 4"])
@pytest.mark.parametrize("detector", ["resnet", "pyramid"])
def test_an_image_in_pieces_is_the_whole_image(seen, detector, grid):
    whole, pieces = seen[f"{detector} 1 x 1"], seen[f"{detector} {grid}"]
    names = {name for name in whole if name[:2] in ("1 ", "3 ")}
    assert len(names) > 100
    for name in sorted(names):
        np.testing.assert_allclose(pieces[name], whole[name], rtol=1e-5, atol=1e-5, err_msg=name)
    assert pieces["compilations"] == 1
    assert pieces["exchanges"] != []
