import numpy as np
import pytest

from stillbox.boxes.matchers import argmax_match

# The published unit tests of the reference (fact sheet 6.1, rows 10 to 15).
SIMILARITY = [[1, 1, 1, 3, 1], [2, -1, 2, 0, 4], [3, 0, -1, 0, 0]]
FORCED = [[1, 1, 1, 3, 1], [-1, 0, -2, -2, -1], [3, 0, -1, 2, 0]]
PADDED = [[1, 1, 1, 3, 1], [-1, 0, -2, -2, -1], [0] * 5, [3, 0, -1, 2, 0], [0] * 5]
ALL = [True, True, True]


@pytest.mark.parametrize(
    "options, matches",
    [
        # Column maxima are 3, 1, 2, 3, 4 in rows 2, 0, 1, 0, 1.
        ({"ignore_thresholds": True}, [2, 0, 1, 0, 1]),
        ({"matched_threshold": 3, "unmatched_threshold": 3}, [2, -1, -1, 0, 1]),
        ({"matched_threshold": 3, "unmatched_threshold": 2}, [2, -1, -2, 0, 1]),
        (
            {
                "matched_threshold": 3,
                "unmatched_threshold": 2,
                "negatives_lower_than_unmatched": False,
            },
            [2, -2, -1, 0, 1],
        ),
    ],
)
def test_thresholds_part_matched_ignored_and_background(options, matches):
    result = argmax_match(SIMILARITY, ALL, **options)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, matches)


@pytest.mark.parametrize("force, matches", [(False, [2, -1, -1, 0, -1]), (True, [2, 1, -1, 0, -1])])
def test_every_row_can_force_a_match(force, matches):
    # Row 1 is nowhere above 0, and takes its best column, 1.
    result = argmax_match(
        FORCED,
        ALL,
        matched_threshold=3,
        unmatched_threshold=2,
        force_match_for_each_row=force,
    )
    np.testing.assert_array_equal(result, matches)


def test_padding_rows_force_nothing():
    result = argmax_match(
        PADDED,
        [True, True, False, True, False],
        matched_threshold=3,
        unmatched_threshold=2,
        force_match_for_each_row=True,
    )
    np.testing.assert_array_equal(result, [3, 1, -1, 0, -1])


@pytest.mark.parametrize(
    "valid, matches",
    [
        # Row 3 resembles nothing and steals anchor 0; rows 0 and 1 both want anchor 1, and the
        # lower gets it although row 1 suits it better; row 2 takes anchor 3, the lower of two.
        ([1, 1, 1, 1], [3, 0, 0, 2, -1]),
        ([1, 1, 1, 0], [-1, 0, 0, 2, -1]),
        ([1, 1, 0, 0], [-1, 0, 0, -1, -1]),
        # Rows that are not valid still compete: anchor 1 goes to row 1, which has .7.
        ([0, 0, 0, 0], [-1, 1, 0, -1, -1]),
    ],
)
def test_forced_matches_equal_the_executed_probe(valid, matches):
    similarity = [[0.2, 0.6, 0.6, 0, 0], [0.1, 0.7, 0.6, 0.3, 0.3], [0, 0, 0, 0.3, 0.3], [0] * 5]
    result = argmax_match(similarity, np.asarray(valid, bool), force_match_for_each_row=True)
    np.testing.assert_array_equal(result, matches)


def test_the_matched_threshold_itself_matches():
    np.testing.assert_array_equal(argmax_match([[0.5, 0.49999]], [True]), [0, -1])


def test_one_anchor_and_many_boxes():
    np.testing.assert_array_equal(argmax_match([[0.6], [0.8], [0.8]], ALL), [1])


def test_thresholds_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match=r"unmatched_threshold 0\.6 is above"):
        argmax_match([[0.0]], [True], matched_threshold=0.5, unmatched_threshold=0.6)
    with pytest.raises(ValueError, match="no anchor would be background"):
        argmax_match([[0.0]], [True], negatives_lower_than_unmatched=False)
