import jax
import numpy as np
import pytest

from stillbox.boxes.nms import batched_nms
from tests.boxes import golden

# B8 of fact sheet 6.1: eight boxes, scores of two classes.
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
    batched_nms,
    static_argnames=(*OPTIONS, "change_coordinate_frame"),
)


def found(detections, image=0):
    """Boxes, scores and classes of one image without the padding."""
    count = int(detections.count[image])
    return tuple(np.asarray(part)[image, :count] for part in detections[:3])


def nms_of_one(boxes, scores, **options):
    window = (
        np.asarray(options.pop("clip_window"), np.float32) if "clip_window" in options else None
    )
    images = (np.asarray(part, np.float32)[None] for part in (boxes, scores))
    return jitted_nms(*images, **options, clip_window=window)


def test_detections_equal_the_published_test_and_zeros_follow():
    detections = nms_of_one(BOXES, SCORES, **OPTIONS)
    np.testing.assert_array_equal(detections.boxes[0], [*BOXES[[3, 0, 6, 5]], [0] * 4])
    np.testing.assert_array_equal(detections.scores[0], np.float32([0.95, 0.9, 0.85, 0.3, 0]))
    np.testing.assert_array_equal(detections.classes[0], [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(detections.count, [4])
    assert [part.dtype for part in detections] == [np.float32, np.float32, np.int32, np.int32]


@pytest.mark.parametrize("caps, kept", [((2, 5), 3), ((4, 2), 2)])
def test_caps_equal_the_published_test(caps, kept):
    # Two of class 0 and one of class 1; two in all.
    options = {**OPTIONS, "max_per_class": caps[0], "max_total": caps[1]}
    boxes, scores, _ = found(nms_of_one(BOXES, SCORES, **options))
    np.testing.assert_array_equal(boxes, BOXES[[3, 0, 6]][:kept])
    np.testing.assert_array_equal(scores, np.float32([0.95, 0.9, 0.85])[:kept])


@pytest.mark.parametrize("reframe, expected", [(False, [5, 4, 8, 7]), (True, [0, 0, 1, 1])])
def test_clipping_equals_the_published_test(reframe, expected):
    # Unclipped the two overlap by 81 / 119 and the second goes; clipped they would be equal.
    boxes, scores, _ = found(
        nms_of_one(
            [[0, 0, 10, 10], [1, 1, 11, 11]],
            [[0.9], [0.75]],
            **{**OPTIONS, "score_threshold": 0.0},
            clip_window=[[5, 4, 8, 7]],
            change_coordinate_frame=reframe,
        )
    )
    np.testing.assert_array_equal(boxes, [expected])
    np.testing.assert_array_equal(scores, np.float32([0.9]))


def golden_inputs():
    """The recipe in the golden file: 200 boxes, 5 classes, most scores low."""
    random = np.random.RandomState(0)
    centers, sizes = random.rand(200, 2), random.rand(200, 2) * 0.35 + 0.05
    boxes = np.concatenate([centers - sizes / 2, centers + sizes / 2], -1)
    return boxes.astype(np.float32), (random.rand(200, 5) ** 4).astype(np.float32)


@pytest.mark.parametrize(
    "name, window", [("plain", {}), ("clip", {"clip_window": [[0, 0, 0.75, 1]]})]
)
def test_200_boxes_of_5_classes_equal_the_executed_reference(name, window):
    expected = golden.load("boxes_nms.json")[name]
    detections = nms_of_one(
        *golden_inputs(),
        score_threshold=0.1,
        iou_threshold=0.5,
        max_per_class=20,
        max_total=50,
        change_coordinate_frame=bool(window),
        **window,
    )
    boxes, scores, classes = found(detections)
    assert len(boxes) == expected["num"]
    np.testing.assert_array_equal(scores[:8], np.float32(expected["scores8"]))
    np.testing.assert_array_equal(classes[:8], expected["classes8"])
    np.testing.assert_allclose(boxes[:3], expected["boxes3"], atol=1e-6)
    np.testing.assert_allclose(scores.sum(), expected["score_sum"], rtol=1e-6)
    np.testing.assert_allclose(boxes.sum(), expected["box_sum"], rtol=1e-6)
    np.testing.assert_array_equal(np.bincount(classes), expected["class_hist"])


def slow_nms(
    boxes, scores, window, *, score_threshold, iou_threshold, max_per_class, max_total, reframe
):
    """The order of work that fact sheet 3.7 describes, one image, one class, one box at a time."""
    rows = []
    for class_ in range(scores.shape[1]):
        suppressed = scores[:, class_] <= score_threshold
        picked = 0
        for anchor in np.argsort(-scores[:, class_], kind="stable"):
            if suppressed[anchor] or picked == max_per_class:
                continue
            picked += 1
            suppressed |= golden.plain_iou(boxes[anchor], boxes) > iou_threshold
            rows.append((scores[anchor, class_], class_, anchor))
    rows.sort(key=lambda row: -row[0])  # stable: the lower class stays in front
    kept = []
    for score, class_, anchor in rows:
        box = boxes[anchor]
        if window is not None:
            low, high = window[[0, 1, 0, 1]], window[[2, 3, 2, 3]]
            box = np.clip(box, low, high)
            if np.prod(box[2:] - box[:2]) <= 0:
                continue
            if reframe:
                box = (box - low) / (high - low)
        kept.append((box, score, class_))
    return kept[:max_total]


@pytest.mark.parametrize("with_window", [False, True])
@pytest.mark.parametrize("max_per_class, max_total", [(3, 40), (40, 15), (1, 100), (100, 100)])
def test_random_images_equal_the_slow_way(with_window, max_per_class, max_total):
    rng = np.random.default_rng(max_per_class)
    batch, anchors, classes = 40, 60, 4
    boxes = golden.random_boxes(rng, batch, anchors)
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
        boxes, scores, **options, clip_window=windows, change_coordinate_frame=with_window
    )
    for image in range(batch):
        expected = slow_nms(
            boxes[image],
            scores[image],
            windows[image] if with_window else None,
            **options,
            reframe=with_window,
        )
        result = found(detections, image)
        assert len(result[0]) == len(expected)
        for (box, score, class_), *ours in zip(expected, *result, strict=True):
            np.testing.assert_allclose(ours[0], box, atol=1e-6)
            assert (ours[1], ours[2]) == (score, class_)


def test_scores_at_the_threshold_are_not_detections():
    detections = nms_of_one(BOXES[[0, 3]], [[0.1], [0.11]], **OPTIONS)
    np.testing.assert_array_equal(found(detections)[0], BOXES[[3]])


def test_overlaps_at_the_threshold_stay():
    # [0,0,1,1] and [0,0,1,2] overlap by exactly 1/2.
    detections = nms_of_one([[0, 0, 1, 1], [0, 0, 1, 2]], [[0.9], [0.8]], **OPTIONS)
    assert detections.count[0] == 2


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
    np.testing.assert_array_equal(found(detections)[0], [[0, 0, 1, 0.5]])


def test_a_window_without_area_shows_nothing_and_gives_no_nans():
    detections = nms_of_one(
        BOXES, SCORES, **OPTIONS, clip_window=np.zeros((1, 4)), change_coordinate_frame=True
    )
    assert all(not np.asarray(part).any() for part in detections)


def test_a_change_of_frame_needs_a_window():
    with pytest.raises(ValueError, match="needs a clip_window"):
        nms_of_one(BOXES, SCORES, **OPTIONS, change_coordinate_frame=True)


def test_images_do_not_disturb_each_other():
    rng = np.random.default_rng(3)
    boxes, scores = golden.random_boxes(rng, 4, 50), rng.random((4, 50, 3)).astype(np.float32)
    scores[2] *= 0.05  # an image without detections beside others that are full
    together = jitted_nms(boxes, scores, **OPTIONS)
    for image in range(4):
        alone = nms_of_one(boxes[image], scores[image], **OPTIONS)
        for part, whole in zip(alone, together, strict=True):
            np.testing.assert_array_equal(part[0], whole[image])


def test_varying_contents_compile_once():
    traces = []

    @jax.jit
    def nms(boxes, scores):
        traces.append(None)
        return batched_nms(boxes, scores, **OPTIONS)

    for factor, count in ((1.0, 4), (0.0, 0), (0.3, 3)):
        # Times .3 the scores .3 and below fall under the threshold of .1.
        assert nms(BOXES[None], SCORES[None] * np.float32(factor)).count[0] == count
    assert len(traces) == 1
