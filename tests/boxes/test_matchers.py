import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes import matchers
from stillbox.boxes.matchers import BACKGROUND, IGNORED, Rows

# The published unit tests of the reference .
SIMILARITY = [[1, 1, 1, 3, 1], [2, -1, 2, 0, 4], [3, 0, -1, 0, 0]]
FORCED = [[1, 1, 1, 3, 1], [-1, 0, -2, -2, -1], [3, 0, -1, 2, 0]]
PADDED = [[1, 1, 1, 3, 1], [-1, 0, -2, -2, -1], [0] * 5, [3, 0, -1, 2, 0], [0] * 5]
ALL = [True, True, True]


def rows_of(similarity, valid, used=None):
    """The rows of a matrix."""
    matrix = jnp.asarray(similarity, jnp.float32)
    return Rows(lambda row: matrix[row], valid, len(matrix) if used is None else used)


def argmax_match(similarity, valid, used=None, **options):
    return matchers.argmax_match(rows_of(similarity, valid, used), **options)


def bipartite_match(similarity, valid):
    return matchers.bipartite_match(rows_of(similarity, valid))


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
        # Row 3 has no similarity and gets anchor 0; rows 0 and 1 share best anchor 1, and the
        # lower gets it although row 1 is more similar; row 2 takes anchor 3, the lower of two.
        ([1, 1, 1, 1], [3, 0, 0, 2, -1]),
        ([1, 1, 1, 0], [-1, 0, 0, 2, -1]),
        ([1, 1, 0, 0], [-1, 0, 0, -1, -1]),
        # Rows that are not valid still compete: anchor 1 goes to row 1, which has .7.
        ([0, 0, 0, 0], [-1, 1, 0, -1, -1]),
    ],
)
def test_forced_matches_equal_the_executed_probe(valid, matches):
    similarity = [[0.2, 0.6, 0.6, 0, 0], [0.1, 0.7, 0.6, 0.3, 0.3], [0, 0, 0, 0.3, 0.3], [0] * 5]
    result = argmax_match(similarity, np.bool_(valid), force_match_for_each_row=True)
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


def test_without_thresholds_all_but_padding_matches():
    # Padding has a similarity of minus infinity, the only one of anchor 1.
    nothing = [[0.0, -np.inf], [-np.inf, -np.inf]]
    np.testing.assert_array_equal(argmax_match(nothing, ALL[:2], ignore_thresholds=True), [0, -1])


def matrix_match(similarity, valid, matched, unmatched, force):
    """The argmax matching on the whole matrix."""
    matches, best = similarity.argmax(axis=0), similarity.max(axis=0)
    matches[best < matched] = IGNORED
    matches[best < unmatched] = BACKGROUND
    if force:
        # Lower rows come last and have their way.
        for row in np.flatnonzero(valid)[::-1]:
            matches[similarity[row].argmax()] = row
    return matches


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("rows", "anchors", "levels"), [(1, 1, 3), (7, 60, 3), (30, 50, 5), (9, 4, 2), (24, 300, 1000)]
)
def test_matches_row_by_row_are_those_of_the_matrix(rows, anchors, levels, force):
    # Few levels make many ties, among the rows and among the anchors.
    rng = np.random.default_rng(rows * anchors)
    similarity = rng.integers(0, levels, (20, rows, anchors)).astype(np.float32) / levels
    valid = rng.random((20, rows)) < 0.6
    # Padding follows, which matches nothing; the loop ends before all of it.
    similarity = np.concatenate([similarity, np.full((20, 5, anchors), -np.inf, np.float32)], 1)
    valid = np.concatenate([valid, np.zeros((20, 5), bool)], axis=1)

    def match(similarity, valid, used):
        return argmax_match(
            similarity,
            valid,
            used,
            matched_threshold=0.7,
            unmatched_threshold=0.4,
            force_match_for_each_row=force,
        )

    expected = [
        matrix_match(one, which, 0.7, 0.4, force)
        for one, which in zip(similarity, valid, strict=True)
    ]
    matched = jax.jit(jax.vmap(match, in_axes=(0, 0, None)))
    for used in (rows, rows + 2, rows + 5):
        np.testing.assert_array_equal(matched(similarity, valid, used), expected)


def greedy_pairs(similarity, valid_rows):
    """Bipartite matching pair by pair, on the whole matrix."""
    left = np.where(np.asarray(valid_rows)[:, None], similarity, -np.inf)
    matches = np.full(left.shape[1], BACKGROUND)
    while left.max() > -np.inf:
        # The first maximum: the lowest row, then the lowest anchor.
        row, anchor = np.unravel_index(np.argmax(left), left.shape)
        matches[anchor] = row
        left[row], left[:, anchor] = -np.inf, -np.inf
    return matches


def test_bipartite_matches_equal_the_published_test():
    # .8 first: row 0 has anchor 2; row 1 then takes .2 before .15 .
    result = bipartite_match([[0.5, 0.1, 0.8], [0.15, 0.2, 0.3]], [True, True])
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, [-1, 1, 0])


def test_invalid_rows_at_any_position_take_no_anchor():
    similarity = [[0.5, 0.1, 0.8], [0.15, 0.2, 0.3]]
    np.testing.assert_array_equal(bipartite_match(similarity, [False, True]), [-1, -1, 1])
    np.testing.assert_array_equal(bipartite_match(similarity, [True, False]), [-1, -1, 0])
    np.testing.assert_array_equal(bipartite_match(similarity, [False, False]), [-1, -1, -1])


def test_a_valid_row_without_similarity_takes_a_free_anchor():
    np.testing.assert_array_equal(bipartite_match([[0, 0, 0], [0.4, 0, 0]], ALL[:2]), [1, 0, -1])


@pytest.mark.parametrize(
    ("rows", "anchors", "levels"),
    [(1, 1, 9), (1, 50, 3), (8, 200, 1000), (20, 30, 4), (12, 5, 3), (9, 9, 1), (30, 30, 2)],
)
def test_bipartite_matches_equal_those_made_pair_by_pair(rows, anchors, levels):
    # Few levels make many ties; more rows than anchors leave rows over.
    rng = np.random.default_rng(rows * anchors)
    similarity = rng.integers(0, levels, (40, rows, anchors)).astype(np.float32) / levels
    valid = rng.random((40, rows)) < rng.random((40, 1))
    result = jax.jit(jax.vmap(bipartite_match))(similarity, valid)
    expected = [greedy_pairs(one, which) for one, which in zip(similarity, valid, strict=True)]
    np.testing.assert_array_equal(result, expected)


def test_bipartite_matching_compiles_once_for_any_number_of_boxes():
    traces = []

    @jax.jit
    def match(similarity, valid):
        traces.append(None)
        return bipartite_match(similarity, valid)

    similarity = np.random.default_rng(0).random((6, 20), np.float32)
    for count in range(7):
        assert (np.asarray(match(similarity, np.arange(6) < count)) >= 0).sum() == count
    assert len(traces) == 1
