import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes import nms, nms_unrolled
from stillbox.boxes.nms_prefix import best_candidates, top_k
from stillbox.lowering import lowering
from tests.boxes import golden

# From the original's unit tests: eight boxes, scores of two classes.
BOXES = np.float32(
    [
        [0, 0, 1, 1],
        [0, 0.1, 1, 1.1],
        [0, -0.1, 1, 0.9],
        [0, 10, 1, 11],
        [0, 10.1, 1, 11.1],
        [0, 100, 1, 101],
        [0, 1000, 1, 1002],
        [0, 1000, 1, 1002.1],
    ]
)
SCORES = np.float32(
    [
        [0.9, 0.01],
        [0.75, 0.05],
        [0.6, 0.01],
        [0.95, 0],
        [0.5, 0.01],
        [0.3, 0.01],
        [0.01, 0.85],
        [0.01, 0.5],
    ]
)
OPTIONS = {"score_threshold": 0.1, "iou_threshold": 0.5, "max_per_class": 4, "max_total": 5}
UNIT = np.float32([[0, 0, 1, 1]])

# One program for each shape and set of options: tests that share them compile together.
jitted_nms = jax.jit(
    golden.nms,
    static_argnames=(
        *OPTIONS,
        "keep_empty",
        "class_agnostic",
        "clip_first",
        "drop_at_threshold",
        "max_candidates_per_class",
        "soft_sigma",
    ),
)


def shown_boxes(detections, image=0):
    """Boxes, scores and classes of one image without the padding."""
    count = int(detections.count[image])
    return tuple(np.asarray(part)[image, :count] for part in detections[:3])


def nms_of_one(boxes, scores, **options):
    windows = {
        name: np.asarray(options.pop(name), np.float32)
        for name in ("clip_window", "frame")
        if options.get(name) is not None
    }
    images = (np.asarray(part, np.float32)[None] for part in (boxes, scores))
    return jitted_nms(*images, **options, **windows)


def test_detections_equal_the_published_test_and_zeros_follow():
    detections = nms_of_one(BOXES, SCORES, **OPTIONS)
    np.testing.assert_array_equal(detections.boxes[0], [*BOXES[[3, 0, 6, 5]], [0] * 4])
    np.testing.assert_array_equal(detections.scores[0], np.float32([0.95, 0.9, 0.85, 0.3, 0]))
    np.testing.assert_array_equal(detections.classes[0], [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(detections.count, [4])
    np.testing.assert_array_equal(detections.anchors[0, :4], [3, 0, 6, 5])
    *arrays, finite = detections
    assert [part.dtype for part in arrays] == [np.float32] * 2 + [np.int32] * 3
    assert finite is None  # the detector says it, which sees the predictions


@pytest.mark.parametrize("caps, kept", [((2, 5), 3), ((4, 2), 2)])
def test_caps_equal_the_published_test(caps, kept):
    # Two of class 0 and one of class 1; two in all.
    options = {**OPTIONS, "max_per_class": caps[0], "max_total": caps[1]}
    boxes, scores, _ = shown_boxes(nms_of_one(BOXES, SCORES, **options))
    np.testing.assert_array_equal(boxes, BOXES[[3, 0, 6]][:kept])
    np.testing.assert_array_equal(scores, np.float32([0.95, 0.9, 0.85])[:kept])


@pytest.mark.parametrize("reframe, expected", [(False, [5, 4, 8, 7]), (True, [0, 0, 1, 1])])
def test_clipping_equals_the_published_test(reframe, expected):
    # Unclipped the two overlap by 81 / 119 and the second goes; clipped they would be equal.
    boxes, scores, _ = shown_boxes(
        nms_of_one(
            [[0, 0, 10, 10], [1, 1, 11, 11]],
            [[0.9], [0.75]],
            **{**OPTIONS, "score_threshold": 0.0},
            clip_window=[[5, 4, 8, 7]],
            frame=[[5, 4, 8, 7]] if reframe else None,
        )
    )
    np.testing.assert_array_equal(boxes, [expected])
    np.testing.assert_array_equal(scores, np.float32([0.9]))


@pytest.mark.parametrize(
    "name, options",
    [
        ("plain", {}),
        # The original's variant for static shapes, which all of ours are.
        ("static", {}),
        ("partitioned", {"drop_at_threshold": True}),
        ("soft.5", {"soft_sigma": 0.5}),
        ("agnostic", {"class_agnostic": True}),
        ("clip", {"clip_window": [[0, 0, 0.75, 1]], "frame": [[0, 0, 0.75, 1]]}),
    ],
)
def test_200_boxes_of_5_classes_equal_the_executed_reference(name, options):
    expected = golden.load("boxes_nms.json")[name]
    detections = nms_of_one(
        *golden.nms_inputs(),
        score_threshold=0.1,
        iou_threshold=0.5,
        max_per_class=20,
        max_total=50,
        **options,
    )
    boxes, scores, classes = shown_boxes(detections)
    assert len(boxes) == expected["num"]
    np.testing.assert_array_equal(scores[:8], np.float32(expected["scores8"]))
    np.testing.assert_array_equal(classes[:8], expected["classes8"])
    np.testing.assert_allclose(boxes[:3], expected["boxes3"], atol=1e-6)
    np.testing.assert_allclose(scores.sum(), expected["score_sum"], rtol=1e-6)
    np.testing.assert_allclose(boxes.sum(), expected["box_sum"], rtol=1e-6)
    np.testing.assert_array_equal(np.bincount(classes), expected["class_hist"])


def slow_picks(boxes, scores, *, score_threshold, iou_threshold, most, sigma, at_threshold):
    """Picks of one class, one box at a time: anchor and score."""
    left, picks = np.where(scores > score_threshold, scores, -np.inf), []
    while len(picks) < most and left.max() > -np.inf:
        anchor = np.argmax(left)
        picks.append((anchor, left[anchor]))
        overlaps = golden.plain_iou(boxes[anchor], boxes)
        if sigma:
            left = left * np.exp(-(overlaps**2) / (2 * sigma)).astype(np.float32)
            left[left <= score_threshold] = -np.inf
        else:
            gone = overlaps >= iou_threshold if at_threshold else overlaps > iou_threshold
            left[gone] = -np.inf
        left[anchor] = -np.inf
    return picks


def slow_nms(boxes, scores, window, *, max_per_class, max_total, agnostic, outside, **options):
    """The original's order of steps, one image, one class, one box at a time."""
    labels = np.tile(np.arange(scores.shape[1]), (len(boxes), 1))
    if boxes.ndim == 2:
        boxes = np.repeat(boxes[:, None], scores.shape[1], axis=1)
    if agnostic:
        boxes = np.take_along_axis(boxes, scores.argmax(axis=1)[:, None, None], axis=1)
        labels = scores.argmax(axis=1)[:, None]
        scores, max_per_class = scores.max(axis=1, keepdims=True), max_total
    rows = [
        (score, labels[anchor, column], boxes[anchor, column])
        for column in range(scores.shape[1])
        for anchor, score in slow_picks(
            boxes[:, column], scores[:, column], most=max_per_class, **options
        )
    ]
    rows.sort(key=lambda row: -row[0])  # stable: the lower class stays in front
    kept = []
    for score, class_, box in rows:
        if window is not None:
            low, high = window[[0, 1, 0, 1]], window[[2, 3, 2, 3]]
            box = np.clip(box, low, high)
            if np.prod(box[2:] - box[:2]) <= 0 and not outside:
                continue
            box = (box - low) / (high - low)
        kept.append((box, score, class_))
    return kept[:max_total]


@pytest.mark.parametrize("own_boxes", [False, True])
@pytest.mark.parametrize(
    "max_per_class, max_total, with_window, variant",
    [
        (3, 40, True, {}),
        (40, 15, True, {}),
        (40, 15, False, {}),
        (1, 100, True, {}),
        (100, 100, False, {}),
        (40, 30, True, {"soft_sigma": 0.3}),
        (5, 15, False, {"soft_sigma": 0.01}),
        (1, 15, True, {"class_agnostic": True}),
        (1, 30, False, {"class_agnostic": True, "soft_sigma": 0.5}),
        (40, 40, True, {"drop_at_threshold": True}),
        (9, 30, True, {"keep_empty": True}),
    ],
)
def test_random_images_equal_the_slow_way(
    max_per_class, max_total, with_window, variant, own_boxes
):
    rng = np.random.default_rng(max_per_class)
    batch, anchors, classes = 40, 60, 4
    boxes = golden.random_boxes(rng, batch, anchors)
    if own_boxes:
        every = [golden.random_boxes(rng, batch, anchors) for _ in range(classes)]
        boxes = np.stack(every, axis=2)
    # Coarse scores make many ties, within a class and between classes.
    scores = (rng.integers(0, 25, (batch, anchors, classes)) / 25).astype(np.float32)
    boxes[0], scores[1], boxes[2, ::2] = boxes[0, 0], 0, 0
    windows = np.tile(np.float32([0.1, 0, 0.8, 0.6]), (batch, 1)) if with_window else None
    options = {
        "score_threshold": 0.2,
        "iou_threshold": 0.3,
        "max_per_class": max_per_class,
        "max_total": max_total,
    }
    detections = jitted_nms(
        boxes,
        scores,
        **options,
        **variant,
        clip_window=windows,
        frame=windows,
    )
    for image in range(batch):
        expected = slow_nms(
            boxes[image],
            scores[image],
            windows[image] if with_window else None,
            **options,
            sigma=variant.get("soft_sigma", 0.0),
            agnostic=variant.get("class_agnostic", False),
            at_threshold=variant.get("drop_at_threshold", False),
            outside=variant.get("keep_empty", False),
        )
        result = shown_boxes(detections, image)
        assert len(result[0]) == len(expected)
        for (box, score, class_), *ours in zip(expected, *result, strict=True):
            np.testing.assert_allclose(ours[0], box, atol=1e-6)
            np.testing.assert_allclose(ours[1], score, rtol=2e-6 if "soft_sigma" in variant else 0)
            assert ours[2] == class_


@pytest.mark.parametrize("more", [{}, {"soft_sigma": 0.5}, {"class_agnostic": True}])
def test_room_beyond_the_candidates_is_zero_and_takes_no_search(more):
    """There are 16 pairs of a box and a class, 8 where a box has its best class alone."""
    options = OPTIONS | {"max_per_class": 100} | more
    small, large = (
        nms_of_one(BOXES, SCORES, **options | {"max_total": most}) for most in (16, 100_000)
    )
    assert large.scores.shape == (1, 100_000)
    for few, many in zip(shown_boxes(small), shown_boxes(large), strict=True):
        np.testing.assert_array_equal(few, many)
    assert not np.any(large.scores[:, 16:])


def test_scores_at_the_threshold_are_not_detections():
    detections = nms_of_one(BOXES[[0, 3]], [[0.1], [0.11]], **OPTIONS)
    np.testing.assert_array_equal(shown_boxes(detections)[0], BOXES[[3]])


def test_overlaps_at_the_threshold_stay():
    # [0,0,1,1] and [0,0,1,2] overlap by exactly 1/2.
    detections = nms_of_one([[0, 0, 1, 1], [0, 0, 1, 2]], [[0.9], [0.8]], **OPTIONS)
    assert detections.count[0] == 2
    # Unless the original's partitioned variant is configured.
    options = {**OPTIONS, "drop_at_threshold": True}
    assert nms_of_one([[0, 0, 1, 1], [0, 0, 1, 2]], [[0.9], [0.8]], **options).count[0] == 1


def test_soft_suppression_equals_the_published_test():
    # From the original's unit tests: [0, .1, 1, 1.1] overlaps [0, 0, 1, 1] by .9 / 1.1 = .8182, and
    # .75 decays to .75 * exp(-.8182^2) = .384; the third, at .6, falls to .307 and then further.
    options = {**OPTIONS, "iou_threshold": 1.0, "max_total": 4, "soft_sigma": 0.5}
    boxes, scores, classes = shown_boxes(nms_of_one(BOXES, SCORES, **options))
    np.testing.assert_array_equal(boxes, BOXES[[3, 0, 6, 1]])
    np.testing.assert_allclose(scores, [0.95, 0.9, 0.85, 0.384], atol=5e-4)
    np.testing.assert_array_equal(classes, [0, 0, 1, 0])


@pytest.mark.parametrize("iou_threshold", [0.5, 0.9, 1.0])
def test_the_threshold_of_overlaps_has_no_effect_on_soft_suppression(iou_threshold):
    # As executed in the original: box 2 overtakes box 1.
    boxes = [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 0.6, 1, 1.6]]
    options = {**OPTIONS, "score_threshold": 0.0, "iou_threshold": iou_threshold}
    shown, scores, _ = shown_boxes(
        nms_of_one(boxes, [[0.9], [0.75], [0.7]], **options, soft_sigma=0.5)
    )
    np.testing.assert_array_equal(shown, np.float32(boxes)[[0, 2, 1]])
    np.testing.assert_allclose(scores, [0.9, 0.657589, 0.343621], rtol=1e-5)


def test_scores_that_fade_to_the_threshold_are_out():
    # Equal boxes: .8 * exp(-1 / (2 * .01)) is next to nothing; far smaller sigmas give 0.
    for sigma in (0.01, 1e-30):
        detections = nms_of_one(
            np.tile(UNIT, (3, 1)), [[0.9], [0.8], [0.7]], **OPTIONS, soft_sigma=sigma
        )
        assert detections.count[0] == 1


def test_class_agnostic_nms_takes_the_best_class_of_a_box():
    # The second overlaps the first by 2/3 and goes, though it is of another class.
    boxes = [[0, 0, 1, 1], [0, 0.2, 1, 1.2], [0, 5, 1, 6]]
    scores = [[0.5, 0.9], [0.8, 0.7], [0.6, 0.6]]
    options = {**OPTIONS, "max_per_class": 1}
    detections = nms_of_one(boxes, scores, **options, class_agnostic=True)
    shown, scores, _ = shown_boxes(detections)
    np.testing.assert_array_equal(shown, np.float32(boxes)[[0, 2]])
    np.testing.assert_array_equal(scores, np.float32([0.9, 0.6]))
    # Of equal classes the lowest; zeros follow.
    np.testing.assert_array_equal(detections.classes[0], [1, 0, 0, 0, 0])


def test_boxes_outside_the_window_can_be_kept():
    detections = nms_of_one(
        [[0, 2, 1, 3], [0, 0, 1, 0.5]],
        [[0.9], [0.8]],
        **OPTIONS,
        clip_window=UNIT,
        keep_empty=True,
    )
    np.testing.assert_array_equal(shown_boxes(detections)[0], [[0, 1, 1, 1], [0, 0, 1, 0.5]])


def test_nothing_above_the_threshold_is_an_empty_image():
    detections = nms_of_one(BOXES, SCORES, **{**OPTIONS, "score_threshold": 0.99})
    assert all(not np.asarray(part).any() for part in detections)


def test_more_places_than_boxes_are_filled_with_zeros():
    detections = nms_of_one(BOXES[:1], SCORES[:1], **{**OPTIONS, "max_total": 100})
    assert detections.boxes.shape == (1, 100, 4)
    assert detections.count[0] == 1
    assert not np.asarray(detections.boxes[0, 1:]).any()


def test_of_equal_boxes_with_equal_scores_one_stays_in_each_class():
    detections = nms_of_one(np.tile(UNIT, (6, 1)), np.full((6, 3), 0.5), **OPTIONS)
    np.testing.assert_array_equal(detections.classes[0, :3], [0, 1, 2])
    assert detections.count[0] == 3


def test_boxes_outside_the_window_suppress_and_count_but_are_not_detections():
    # The best box lies half outside and wins over the second; the third is wholly outside and
    # uses up the second place of its class, so that the fourth goes too.
    boxes = [[0, -0.5, 1, 0.5], [0, -0.4, 1, 0.6], [0, 5, 1, 6], [0, 0.6, 1, 1]]
    scores = [[0.9], [0.8], [0.7], [0.6]]
    detections = nms_of_one(boxes, scores, **{**OPTIONS, "max_per_class": 2}, clip_window=UNIT)
    np.testing.assert_array_equal(shown_boxes(detections)[0], [[0, 0, 1, 0.5]])


def test_a_window_without_area_gives_no_detections_and_no_nans():
    detections = nms_of_one(
        BOXES, SCORES, **OPTIONS, clip_window=np.zeros((1, 4)), frame=np.zeros((1, 4))
    )
    assert all(not np.asarray(part).any() for part in detections)


def test_images_do_not_disturb_each_other():
    rng = np.random.default_rng(3)
    boxes, scores = golden.random_boxes(rng, 4, 50), rng.random((4, 50, 3)).astype(np.float32)
    scores[2] *= 0.05  # an image without detections beside others that are full
    together = jitted_nms(boxes, scores, **OPTIONS)
    for image in range(4):
        alone = nms_of_one(boxes[image], scores[image], **OPTIONS)
        for part, whole in zip(alone[:5], together[:5], strict=True):
            np.testing.assert_array_equal(part[0], whole[image])


def test_varying_contents_compile_once():
    traces = []

    @jax.jit
    def nms(boxes, scores):
        traces.append(None)
        return golden.nms(boxes, scores, **OPTIONS)

    for factor, count in ((1.0, 4), (0.0, 0), (0.3, 3)):
        # Times .3 the scores .3 and below fall under the threshold of .1.
        assert nms(BOXES[None], SCORES[None] * np.float32(factor)).count[0] == count
    assert len(traces) == 1


# The published test of MLPerf's NMS .
MLPERF_BOXES = [
    (0.142864347, 0.58940959, 0.820568502, 0.783712029),
    (0.113038629, 0.590494156, 0.808443785, 0.777864337),
    (0.163048059, 0.594742, 0.812249303, 0.787663996),
    (0.129777223, 0.590861559, 0.843621969, 0.781312227),
    (0.161663324, 0.593474388, 0.809598088, 0.789204478),
    (0.113868237, 0.590315461, 0.814452648, 0.77957952),
    (0.16508393, 0.558505952, 0.459944963, 0.634872854),
    (0.168551877, 0.559545994, 0.44264257, 0.635466576),
    (0.185653567, 0.553336978, 0.476624668, 0.63462913),
    (0.178655505, 0.535557508, 0.759687126, 0.666503549),
    (0.170532703, 0.618388474, 0.4500283, 0.784762323),
    (0.170998275, 0.668687463, 0.439314961, 0.772987127),
]
MLPERF_SCORES = [
    0.99056089,
    0.91968429,
    0.91328019,
    0.86525613,
    0.75137419,
    0.74802309,
    0.37547377,
    0.2663014,
    0.25483057,
    0.18991362,
    0.03,
    0.01,
]
MLPERF = {
    "score_threshold": 0.05,
    "iou_threshold": 0.5,
    "drop_at_threshold": True,
    "max_candidates_per_class": 200,
    "max_per_class": 200,
    "max_total": 200,
}


def test_three_boxes_survive_as_in_mlperfs_test():
    scores = np.float32(MLPERF_SCORES)[:, None]
    shown, kept, _ = shown_boxes(nms_of_one(MLPERF_BOXES, scores, **MLPERF))
    np.testing.assert_allclose(kept, [0.990561, 0.375474, 0.189914], atol=1e-6)
    np.testing.assert_array_equal(shown, np.float32(MLPERF_BOXES)[[0, 6, 9]])


def test_only_the_best_candidates_of_a_class_take_part():
    boxes = [[0, 0, 1, 1], [0, 0, 1, 0.9], [0, 2, 1, 3], [0, 4, 1, 5]]
    scores = [[0.9, 0.2], [0.8, 0.3], [0.7, 0.4], [0.6, 0.5]]
    shown, kept, classes = shown_boxes(
        nms_of_one(boxes, scores, **OPTIONS | {"max_candidates_per_class": 2})
    )
    # Of class 0 the first two, of which one suppresses the other; of class 1 the last two.
    np.testing.assert_allclose(kept, np.float32([0.9, 0.5, 0.4]))
    assert classes.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(shown, np.float32(boxes)[[0, 3, 2]])


UNROLLED = {
    "score_threshold": 0.2,
    "iou_threshold": 0.3,
    "max_per_class": 10,
    "max_total": 12,
    "clip_first": True,  # what lies outside the window suppresses nothing in either search
}
WINDOW = np.float32([[0.1, 0, 0.8, 0.6]])


@pytest.mark.parametrize(
    ("anchors", "changes"),
    [
        (40, {}),
        (40, {"clip_window": WINDOW}),
        (40, {"max_candidates_per_class": 7}),
        (40, {"max_candidates_per_class": 7, "clip_window": WINDOW}),
        (40, {"max_candidates_per_class": 40}),
        (40, {"max_candidates_per_class": 40, "clip_window": WINDOW}),
        (40, {"max_per_class": 2}),
        (40, {"max_per_class": 20, "drop_at_threshold": True}),
        (40, {"iou_threshold": 0.0}),
        (40, {"soft_sigma": 0.5, "clip_window": WINDOW}),
        (40, {"class_agnostic": True}),
        (400, {"clip_window": WINDOW, "max_per_class": 400}),
        (400, {"max_candidates_per_class": 30}),
    ],
)
@pytest.mark.parametrize(("boxes_of_classes", "few"), [(False, 20), (True, 20), (False, 1)])
def test_the_search_without_loops_finds_the_same(
    anchors, changes, boxes_of_classes, few, monkeypatch
):
    monkeypatch.setattr(nms_unrolled, "_FEW_CLASSES", few)
    monkeypatch.setattr(nms_unrolled, "_LEAST_ANCHORS", 0)  # 240 of the 400
    rng = np.random.default_rng(anchors)
    boxes = golden.random_boxes(rng, 1, anchors * 3).reshape(1, anchors, 3, 4)
    boxes = boxes if boxes_of_classes else boxes[:, :, 0]
    scores = (rng.integers(0, 25, (1, anchors, 3)) / 25).astype(np.float32)  # with many ties
    options = UNROLLED | changes
    expected = jax.jit(lambda b, s: golden.nms(b, s, **options))(boxes, scores)
    with lowering(suppression="unrolled"):
        program = jax.make_jaxpr(lambda b, s: golden.nms(b, s, **options))(boxes, scores)
        detections = jax.jit(lambda b, s: golden.nms(b, s, **options))(boxes, scores)
    for array, other in zip(detections, expected, strict=True):
        np.testing.assert_array_equal(array, other)
    assert expected.count[0] == min(12, 3 * options["max_per_class"])
    assert not {"while", "cond", "scatter"} & {str(eqn.primitive) for eqn in program.eqns}


def test_the_search_without_loops_has_twenty_anchors_for_a_detection(monkeypatch):
    boxes = np.float32([[[0, 0, 1, 1]] * 40 + [[0, 2, 1, 3], [0, 4, 1, 5]]])
    scores = np.linspace(0.9, 0.5, 42, dtype=np.float32)[None, :, None]
    options = {**OPTIONS, "max_total": 2}
    with lowering(suppression="unrolled"):
        assert golden.nms(boxes, scores, **options).count.tolist() == [2]
        monkeypatch.setattr(nms_unrolled, "_LEAST_ANCHORS", 0)
        # The other boxes are below the best forty, of which the first suppresses the others.
        assert golden.nms(boxes, scores, **options).count.tolist() == [1]
        assert golden.nms(boxes[:, 1:], scores[:, 1:], **options).count.tolist() == [2]


def test_boxes_can_be_left_unclipped_in_the_frame_of_their_window():
    boxes = [[-0.1, 0, 0.3, 0.5], [0, 2, 1, 3]]
    window = [[0, 0, 0.5, 1]]
    shown, _, _ = shown_boxes(
        nms_of_one(
            boxes,
            [[0.9], [0.8]],
            **OPTIONS,
            frame=window,
        )
    )
    # Rows are twice as many windows high, columns stay; what lies outside is kept.
    np.testing.assert_allclose(shown, [[-0.2, 0, 0.6, 0.5], [0, 2, 2, 3]])


def test_overlaps_can_be_measured_on_the_clipped_boxes():
    # As they come they overlap by 100 / 120, which is below .9; both fill the same window.
    boxes, window = [[0, 0, 10, 10], [0, 0, 10, 12]], [[0, 0, 10, 5]]
    options = {**OPTIONS, "iou_threshold": 0.9, "clip_window": window}
    kept, _, _ = shown_boxes(nms_of_one(boxes, [[0.9], [0.8]], **options))
    assert kept.tolist() == [[0, 0, 10, 5]] * 2
    kept, scores, _ = shown_boxes(nms_of_one(boxes, [[0.9], [0.8]], **options, clip_first=True))
    assert kept.tolist() == [[0, 0, 10, 5]]
    assert scores.tolist() == [np.float32(0.9)]


def test_the_frame_can_be_another_than_the_window():
    kept, _, _ = shown_boxes(
        nms_of_one(
            [[0, 0, 10, 10]], [[0.9]], **OPTIONS, clip_window=[[0, 0, 8, 9]], frame=[[0, 0, 10, 20]]
        )
    )
    np.testing.assert_allclose(kept, [[0, 0, 0.8, 0.45]], rtol=1e-6)


# ---- The search of the best candidates alone -----------------------------------------------------


PREFIX = {
    "score_threshold": 0.2,
    "iou_threshold": 0.3,
    "max_per_class": 40,
    "max_total": 15,
}


def both(monkeypatch, boxes, scores, *depths, **options):
    """Detections by the search of the best candidates and by that among all boxes."""
    searched = []
    for few in (0, 10**6):
        monkeypatch.setattr(nms, "_FEW", few)
        monkeypatch.setattr(nms, "_DEPTHS", depths)
        suppress = jax.jit(functools.partial(golden.nms, **options))
        searched.append(jax.device_get(suppress(np.float32(boxes), np.float32(scores))))
    return searched


def equal(left, other):
    for first, second in zip(left[:-1], other[:-1], strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.fixture
def searches(monkeypatch):
    """Counts of the images that a search of the best candidates finished, and did not."""
    counts, search = [], nms.search_prefix

    def spy(*arguments):
        result, done = search(*arguments)
        jax.debug.callback(lambda done: counts.extend(done.tolist()), done)
        return result, done

    monkeypatch.setattr(nms, "search_prefix", spy)
    return counts


def random_images(batch, anchors=60, classes=4, steps=25):
    rng = np.random.default_rng(3)
    boxes = golden.random_boxes(rng, batch, anchors)
    # Coarse scores make many ties, within a class and between classes.
    scores = (rng.integers(0, steps, (batch, anchors, classes)) / steps).astype(np.float32)
    return boxes, scores


@pytest.mark.parametrize(
    "depth, variant",
    [
        (20, {}),
        (4, {"max_per_class": 3}),
        (4, {"drop_at_threshold": True, "max_candidates_per_class": 20}),
        (3, {"class_agnostic": True}),
        (4, {"clip_window": np.tile(np.float32([0.1, 0, 0.8, 0.6]), (40, 1))}),
    ],
)
def test_the_best_candidates_give_the_detections_of_all(monkeypatch, searches, depth, variant):
    boxes, scores = random_images(40, steps=10**6)
    scores[1], boxes[2, ::2], scores[3, :, 1:] = 0, 0, 0
    equal(*both(monkeypatch, boxes, scores, depth, **{**PREFIX, **variant}))
    jax.effects_barrier()
    assert sum(searches) >= 36


def test_images_whose_best_candidates_do_not_suffice_are_searched_wholly(monkeypatch, searches):
    boxes, scores = random_images(40, steps=10**6)
    # In these one box of each class stays, so that a look at all candidates is needed.
    boxes[:20] = boxes[:20, :1]
    equal(*both(monkeypatch, boxes, scores, 4, **PREFIX))
    jax.effects_barrier()
    assert searches == [False] * 20 + [True] * 20


def test_a_few_candidates_more_are_searched_before_all_are(monkeypatch, searches):
    boxes, scores = random_images(6, steps=10**6)
    equal(*both(monkeypatch, boxes, scores, 1, 8, **PREFIX))
    jax.effects_barrier()
    assert searches == [False] * 6 + [True] * 6


def test_a_class_has_no_more_candidates_than_its_limit(monkeypatch, searches):
    # Ten boxes side by side in the first class, three of which may be candidates, two in another.
    lefts, zeros = np.arange(100.0), np.zeros(100)
    boxes = np.stack([zeros, lefts, zeros + 1, lefts + 1], axis=1)[None]
    scores = np.zeros((1, 100, 2))
    scores[0, :10, 0], scores[0, 50:52, 1] = np.linspace(0.9, 0.5, 10), 0.4
    options = {**PREFIX, "max_candidates_per_class": 3}
    left, other = both(monkeypatch, boxes, scores, 2, **options)
    equal(left, other)
    assert left.anchors[0, : left.count[0]].tolist() == [0, 1, 2, 50, 51]
    jax.effects_barrier()
    assert searches == [True]


def test_boxes_of_classes(monkeypatch, searches):
    boxes, scores = random_images(4, steps=10**6)
    boxes = np.stack([boxes, boxes[:, ::-1], boxes * 0.9, boxes], axis=2)
    equal(*both(monkeypatch, boxes, scores, 5, **PREFIX))
    jax.effects_barrier()
    assert all(searches)


def test_more_invisible_boxes_than_fit(monkeypatch, searches):
    # 200 boxes side by side of which the window shows the last two, those with the lowest scores.
    lefts = np.arange(200.0)
    ones = np.ones(200)
    boxes = np.stack([0 * ones, lefts, ones, lefts + 1], axis=1)[None]
    scores = np.linspace(0.9, 0.3, 200)[None, :, None]
    options = {
        **PREFIX,
        "max_per_class": 300,
        "clip_window": np.float32([[0, 198, 1, 200]]),
    }
    left, other = both(monkeypatch, boxes, scores, 20, **options)
    equal(left, other)
    assert left.count == [2]
    jax.effects_barrier()
    assert searches == [False]


def test_a_full_class_ends_the_search(monkeypatch, searches):
    boxes, scores = random_images(4, classes=1, steps=10**6)
    equal(*both(monkeypatch, boxes, scores, 1, **{**PREFIX, "max_per_class": 2}))
    jax.effects_barrier()
    assert all(searches)


@pytest.mark.parametrize(
    "name, options",
    [
        ("partitioned", {"drop_at_threshold": True}),
        ("agnostic", {"class_agnostic": True}),
        ("clip", {"clip_window": np.float32([[0, 0, 0.75, 1]])}),
    ],
)
def test_the_executed_reference(monkeypatch, searches, name, options):
    expected = golden.load("boxes_nms.json")[name]
    monkeypatch.setattr(nms, "_FEW", 0)
    boxes, scores = (array[None] for array in golden.nms_inputs())
    limits = {"score_threshold": 0.1, "iou_threshold": 0.5, "max_per_class": 20, "max_total": 50}
    kept = jax.jit(functools.partial(golden.nms, **limits, **options))(boxes, scores)
    assert kept.count.tolist() == [expected["num"]]
    np.testing.assert_array_equal(kept.scores[0, :8], np.float32(expected["scores8"]))
    np.testing.assert_array_equal(kept.classes[0, :8], expected["classes8"])
    np.testing.assert_allclose(kept.scores.sum(), expected["score_sum"], rtol=1e-6)
    jax.effects_barrier()
    assert searches == [True]


def test_candidates_of_the_last_score_are_left_out():
    # Anchors 1 and 2 are kept. Their .5 is not: class 0 of anchor 3 has it too, and comes first.
    scores = jnp.float32([[[0, 0], [0.5, 0.9], [0.8, 0.5], [0.5, 0.1]]])
    best = best_candidates(scores, 0.0, 3)
    np.testing.assert_array_equal(best.scores, np.float32([[0.9, 0.8, -np.inf]]))
    np.testing.assert_array_equal(best.classes[0, :2], [1, 0])
    np.testing.assert_array_equal(best.anchors[0, :2], [1, 2])
    assert not best.complete.any()


def test_a_score_that_is_no_number_hides_no_other():
    scores = jnp.float32([[[0.1, 0.2], [np.nan, 0.9], [0.3, 0.2], [0.4, 0.1]]])
    best = best_candidates(scores, 0.0, 2)
    np.testing.assert_array_equal(best.scores[0, :1], np.float32([0.9]))
    assert best.anchors[0, 0] == 1


@pytest.mark.parametrize("most", [1, 7, 150, 200])
def test_sorts_find_the_greatest_values_in_the_same_order(most):
    rng = np.random.default_rng(5)
    # Many ties, in the last place too, and rows that have fewer candidates than are wanted.
    values = (rng.integers(-9, 9, (3, 200)) / 8).astype(np.float32)
    values[1, 100:] = -np.inf
    values[2] = -np.inf
    with lowering(top_k="sort"):
        ordered = jax.jit(lambda values: top_k(values, most))(values)
    for array, other in zip(ordered, jax.lax.top_k(values, most), strict=True):
        np.testing.assert_array_equal(array, other)
