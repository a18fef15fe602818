"""What holds for all augmentations. A new one is covered as soon as it is registered."""

import dataclasses
import typing

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from tests.experiment.augmentation_cases import BEYOND_THE_LANGUAGE, CASES
from tests.inputs.augment.samples import augmented, sample

# Augmentations that hand out values beyond 0..255 on purpose.
UNBOUNDED = schema.NormalizeImage, schema.SubtractChannelMean
NOTHING_RANDOM = (
    schema.ResizeImage,
    schema.RgbToGray,
    schema.AdjustGamma,
    schema.RemapLabels,
    *UNBOUNDED,
)
SEEDS = range(12)


OPERATIONS = tuple(schema.Augmentation.variants.values())
# The field shows in the loader: tests/inputs/test_sample.py.
OF_THE_RUN = "skip_last_steps"
# The usual sizes would only take time.
SMALL = {
    schema.LargeScaleJitter: {"output_size": 48},
    schema.Mosaic: {"height": 32, "width": 40},
    schema.MixUp: {"height": 32, "width": 40},
}


def always(settings):
    """Returns the same settings with everything that happens by chance happening."""
    names = [field.name for field in dataclasses.fields(settings)]
    certain = {name: 1.0 for name in names if name.endswith("probability")}
    return dataclasses.replace(settings, **certain)


VARIANTS = [
    *(operation(**SMALL.get(operation, {})) for operation in OPERATIONS),
    *(always(operation(**SMALL.get(operation, {}))) for operation in OPERATIONS),
    *CASES.values(),
    *BEYOND_THE_LANGUAGE,
    *(
        schema.RandomJitterBoxes(ratio=1.0, mode=mode + symmetry)
        for symmetry in ("", "_symmetric", "_symmetric_xy")
        for mode in ("expand", "shrink")
    ),
    schema.RandomJitterBoxes(ratio=1.0, mode="default"),
    schema.RandomDownscaleToTargetPixels(min_target_pixels=100, max_target_pixels=200),
    schema.RandomAbsolutePadImage(max_height_padding=9, max_width_padding=9),
    schema.DropLabelProbabilistically(label=2, probability=0.5),
    schema.SsdIouCrop(resize_to=()),
    schema.RandomAdjustBrightness(clip=False),
    schema.RandomAdjustContrast(clip=False),
    schema.RandomAdjustHue(clip=False),
    schema.RandomAdjustSaturation(clip=False),
]
every_variant = pytest.mark.parametrize(
    "settings", [pytest.param(v, id=f"{number}-{v.kind}") for number, v in enumerate(VARIANTS)]
)


def clips(settings):
    parts = (settings, *getattr(settings, "operations", ()))
    return all(getattr(part, "clip_boxes", True) for part in parts)


def assert_sound(after, settings):
    count = len(after.boxes)
    assert after.boxes.shape == (count, 4)
    assert after.class_ids.shape == after.weights.shape == (count,)
    dtypes = [after.boxes.dtype, after.class_ids.dtype, after.weights.dtype]
    assert dtypes == [np.float32, np.int32, np.float32]
    assert np.isfinite(after.boxes).all()
    assert (after.boxes[:, :2] <= after.boxes[:, 2:]).all()
    if clips(settings):
        assert (after.boxes >= -1e-6).all()
        assert (after.boxes <= 1 + 1e-6).all()
    assert after.image.ndim == 3
    assert min(after.image.shape) >= 1
    assert after.image.shape[2] == 3
    assert after.image.dtype in (np.uint8, np.float32)
    assert np.isfinite(after.image).all()
    # Whatever comes next may look at whole pixels as one item.
    assert after.image.strides[1:] == (3 * after.image.itemsize, after.image.itemsize)
    if not isinstance(settings, UNBOUNDED) and getattr(settings, "clip", True):
        # Cubic interpolation overshoots, as the original's does.
        assert after.image.min() >= -60
        assert after.image.max() <= 315


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.kind)
def test_every_class_of_the_schema_has_an_implementation(operation):
    assert callable(implementation_of(operation()))


@every_variant
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_the_result_is_sound(settings, dtype):
    before = sample(dtype=dtype)
    for number in SEEDS:
        assert_sound(augmented(settings, before, number), settings)


@every_variant
def test_an_image_without_boxes_stays_one(settings):
    for number in SEEDS[:4]:
        after = augmented(settings, sample(boxes=()), number)
        assert_sound(after, settings)
        assert len(after.boxes) == 0


@every_variant
@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1)])
def test_one_pixel_is_an_image(settings, size):
    before = sample(boxes=[[0, 0, 1, 1], [0, 0, 0.5, 1]], size=size)
    for number in SEEDS[:6]:
        assert_sound(augmented(settings, before, number), settings)


@every_variant
def test_boxes_without_area_do_no_harm(settings):
    before = sample(boxes=[[0.5, 0.2, 0.5, 0.8], [0, 0, 0, 0], [1, 1, 1, 1]])
    for number in SEEDS[:4]:
        assert_sound(augmented(settings, before, number), settings)


@every_variant
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_nothing_is_written_into_the_input(settings, dtype):
    before = sample(dtype=dtype)
    for field in dataclasses.fields(before):
        getattr(before, field.name).flags.writeable = False
    for number in SEEDS[:4]:
        augmented(settings, before, number)


@every_variant
def test_the_same_generator_gives_the_same_result(settings):
    first, again = (augmented(settings, sample(), 5) for _ in range(2))
    for field in dataclasses.fields(first):
        left, other = getattr(first, field.name), getattr(again, field.name)
        assert left.dtype == other.dtype
        assert np.array_equal(left, other)


@every_variant
def test_a_window_of_a_larger_image_is_accepted(settings):
    # A crop is a view.
    whole = sample(size=(60, 100))
    view = dataclasses.replace(whole, image=whole.image[10:50, 5:85])
    packed = dataclasses.replace(view, image=np.ascontiguousarray(view.image))
    left, other = (augmented(settings, case, 3) for case in (view, packed))
    assert np.array_equal(left.image, other.image)
    assert np.array_equal(left.boxes, other.boxes)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.kind)
def test_results_differ_between_seeds_unless_deterministic(operation):
    boxes = [[0.1 * i, 0.1 * i, 0.1 * i + 0.1, 0.1 * i + 0.3] for i in range(8)]
    before = sample(boxes=boxes, size=(20, 40))
    outcomes = [
        {
            (after.image.shape, after.image.tobytes(), after.boxes.tobytes())
            for after in (augmented(settings, before, number) for number in range(20))
        }
        for settings in VARIANTS
        if type(settings) is operation
    ]
    assert (max(map(len, outcomes)) == 1) == (operation in NOTHING_RANDOM)


# ---- no field is ignored ------------------------------------------------------------------------


def leaves(value, path=()):
    """Yields the place, the type and the value of every field, operations' fields included."""
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if isinstance(inner, tuple) and inner and dataclasses.is_dataclass(inner[0]):
            yield from leaves(inner[0], (*path, field.name))
        elif field.name != OF_THE_RUN:
            yield (*path, field.name), typing.get_type_hints(type(value))[field.name], inner


def replaced(value, path, new):
    if len(path) == 1:
        return dataclasses.replace(value, **{path[0]: new})
    (operation,) = getattr(value, path[0])
    return dataclasses.replace(value, **{path[0]: (replaced(operation, path[1:], new),)})


def others(hint, value):
    if typing.get_origin(hint) is typing.Literal:
        return [option for option in typing.get_args(hint) if option != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value, max(value // 2, 1), 5]
    if isinstance(value, tuple):
        return [tuple(item * 2 for item in value)]
    return [value * 0.5, value * 1.2, 0.9]


def outcomes(settings):
    boxes = [[0.1 * i, 0.08 * i, 0.1 * i + 0.1, 0.08 * i + 0.3] for i in range(8)]
    shown = [sample(boxes=boxes, size=size) for size in ((8, 16), (40, 80))]
    # One box, which a window can have a high IoU with.
    shown.append(sample(boxes=[[0.2, 0.2, 0.8, 0.8]], size=(8, 16)))
    # Values beyond 0..255, which an operation before this one may have left.
    shown.append(dataclasses.replace(shown[0], image=1.4 * shown[0].image.astype(np.float32) - 40))
    for before in shown:
        for number in range(25):
            after = augmented(settings, before, number)
            yield after.image.tobytes(), after.boxes.tobytes(), after.class_ids.tobytes()


def is_same(settings, usual):
    """Stops at the first difference."""
    return all(left == other for left, other in zip(outcomes(settings), usual, strict=True))


@pytest.mark.parametrize(
    "case", [*CASES.values(), *BEYOND_THE_LANGUAGE], ids=lambda case: case.kind
)
def test_every_field_changes_something(case):
    usual = list(outcomes(case))
    silent = [
        path
        for path, hint, value in leaves(case)
        if all(is_same(replaced(case, path, other), usual) for other in others(hint, value))
    ]
    assert silent == []
