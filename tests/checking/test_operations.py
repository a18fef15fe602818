"""The operations of a detector of two stages; of others: `test_candidates.py`."""

from stillbox.checking.operations import forward_operations
from tests.models.two_stage.small import small_model


def test_a_detector_of_two_stages_is_counted():
    """The network of the proposals has a convolution of 3 x 3 to `depth` channels.

    Before it are 8 x 8 places with 32 channels of MobileNet, an eighth of 256; behind it are 4 and
    2 numbers for each of 6 anchors, two scales in three ratios. Each channel more is therefore
    64 * (9 * 32 + 6 * 6) multiply-adds, of two operations.
    """
    small, deeper = (
        forward_operations(small_model(f"model.proposals={{depth: {depth}}}")) for depth in (16, 32)
    )
    assert deeper - small == 2 * 64 * 16 * (9 * 32 + 36)
