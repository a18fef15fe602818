"""Norms without statistics: measured on images, they compute what they did and can be trained."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from stillbox.inputs.loader import open_train_loader
from stillbox.models.build import build_detector
from stillbox.models.layers import NormLayer
from stillbox.models.paths import named_modules
from stillbox.models.variables import read_statistics, split_detector
from stillbox.training.norm_statistics import measure_norms
from stillbox.training.start import start_run
from tests.models.two_stage.small import SMALL_OVERRIDES
from tests.small import BATCH_NORM, DENSE, DENSE_HEADS, small_experiment

DETECTORS = {
    "one stage": (),
    "norms of each map": (*DENSE_HEADS["gfl"], *DENSE, BATCH_NORM),
    "bfloat16": ("train.precision=bfloat16",),
    "several sizes": ("train.input_sizes=[64, 96]",),
}


def modules_of(detector):
    return [(".".join(path), module) for path, module in named_modules(detector)]


def norms_of(detector):
    return {path: norm for path, norm in modules_of(detector) if isinstance(norm, NormLayer)}


def folded_detector(experiment):
    """Returns a detector as it is read from folded weights: norms are a factor and an offset."""
    train = experiment.train
    dtype = np.dtype(train.precision)
    detector = build_detector(experiment.model, dtype=dtype, quantization=train.quantization)
    rng = np.random.default_rng(0)
    for norm in norms_of(detector).values():
        if norm.scale is not None:
            norm.scale.set_value(np.asarray(rng.uniform(0.5, 2, norm.scale.shape), np.float32))
        norm.bias.set_value(np.asarray(rng.uniform(0, 1, norm.bias.shape), np.float32))
        norm.var.set_value(np.full(norm.var.shape, 1 - norm.config.epsilon, np.float32))
    return detector


def first_images(experiment):
    train = replace(experiment.train, batch_size=8, input_sizes=())
    return open_train_loader(replace(experiment, train=train), workers=0).batch(0).images


def outputs(detector, experiment, *, train=False):
    images = jax.numpy.asarray(first_images(experiment))
    return [np.asarray(array, np.float32) for array in detector(images, train=train)]


def arrays_of(detector):
    return {path: np.asarray(array) for path, array in read_statistics(detector).items()}


def distance(some, others):
    return max(float(np.abs(this - other).mean()) for this, other in zip(some, others, strict=True))


@pytest.mark.parametrize("overrides", DETECTORS.values(), ids=DETECTORS)
def test_a_detector_computes_what_it_did_and_in_training_too(scenes, overrides):
    experiment = small_experiment(scenes, *overrides)
    detector, untouched = folded_detector(experiment), folded_detector(experiment)
    before = outputs(detector, experiment)
    names = norms_of(detector)
    assert measure_norms(detector, experiment, names) == len(names) > 0
    rough = "bfloat16" in str(overrides)
    np.testing.assert_allclose(
        np.concatenate([array.ravel() for array in outputs(detector, experiment)]),
        np.concatenate([array.ravel() for array in before]),
        atol=0.1 if rough else 1e-4,
    )
    moved = distance(outputs(untouched, experiment, train=True), before)
    assert distance(outputs(detector, experiment, train=True), before) < moved / 4


def test_rounding_to_integers_changes_no_statistics(scenes):
    plain = small_experiment(scenes)
    rounded = small_experiment(scenes, "train.quantization={delay: 1}")
    stats = []
    for experiment in (plain, rounded):
        detector = folded_detector(experiment)
        measure_norms(detector, experiment, norms_of(detector))
        stats.append(arrays_of(detector))
    assert all(np.array_equal(stats[1][path], array) for path, array in stats[0].items())


def test_norms_of_two_stages_are_measured(scenes):
    experiment = small_experiment(scenes, *SMALL_OVERRIDES)
    detector = folded_detector(experiment)
    images = first_images(experiment)
    sizes = np.full((len(images), 2), images.shape[1:3], np.int32)
    before = detector.detect(images, sizes)
    assert measure_norms(detector, experiment, norms_of(detector))
    np.testing.assert_allclose(detector.detect(images, sizes).scores, before.scores, atol=1e-4)


def test_only_named_norms_are_touched_that_normalise_by_the_batch(scenes):
    experiment = small_experiment(scenes)
    detector = folded_detector(experiment)
    first, second, *_ = norms_of(detector)
    norms_of(detector)[second].frozen = True
    assert measure_norms(detector, experiment, [first, second]) == 1
    stats = arrays_of(detector)
    means = [path for path in stats if path.endswith(".mean")]
    assert [path for path in means if stats[path].any()] == [f"{first}.mean"]


def test_norms_without_a_factor_cannot_take_another_variance(scenes):
    experiment = small_experiment(scenes, "model.backbone.conv.batch_norm.scale=false")
    detector = folded_detector(experiment)
    assert measure_norms(detector, experiment, norms_of(detector)) == 0


def test_a_channel_without_variance_stays_finite(scenes):
    experiment = small_experiment(scenes)
    detector = folded_detector(experiment)
    kernel = dict(modules_of(detector))["backbone.conv_0"].kernel
    kernel.set_value(kernel[...].at[..., 0].set(0.0))
    before = outputs(detector, experiment)
    measure_norms(detector, experiment, norms_of(detector))
    assert norms_of(detector)["backbone.conv_0.norm"].var[...][0] == 0
    for train in (False, True):
        assert all(np.isfinite(array).all() for array in outputs(detector, experiment, train=train))
    assert distance(outputs(detector, experiment), before) < 1e-4


def test_statistics_are_those_of_the_images_and_the_same_each_time(scenes):
    experiment = small_experiment(scenes)
    detectors = [folded_detector(experiment) for _ in range(2)]
    for detector, size in zip(detectors, (4, 2), strict=True):
        train = replace(experiment.train, batch_size=size)
        measure_norms(detector, replace(experiment, train=train), norms_of(detector))
    first, second = map(arrays_of, detectors)
    assert all(np.array_equal(first[path], second[path]) for path in first)
    # The first convolution has no norm before it.
    loader = open_train_loader(
        replace(experiment, train=replace(experiment.train, batch_size=64)), workers=0
    )
    model, detector = experiment.model, folded_detector(experiment)
    pixels = (loader.batch(0).images - np.float32(model.pixels.mean)) / np.float32(model.pixels.std)
    conv = dict(modules_of(detector))["backbone.conv_0"]
    conv.norm, conv.activation = None, "none"
    values = np.asarray(conv(jax.numpy.asarray(pixels, "float32"), train=False), np.float64)
    path = "backbone.conv_0.norm"
    np.testing.assert_allclose(first[f"{path}.mean"], values.mean((0, 1, 2)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(first[f"{path}.var"], values.var((0, 1, 2)), rtol=1e-3)


def test_a_run_from_folded_weights_begins_with_their_network(scenes, tmp_path):
    weights = tmp_path / "folded.npz"
    experiment = small_experiment(
        scenes, f"train.fine_tune.checkpoint={weights}", "train.fine_tune.scope=classification"
    )
    detector = folded_detector(experiment)
    _, params, stats = split_detector(detector)
    arrays = {path: np.asarray(array) for path, array in (params | stats).items()}
    np.savez(weights, **{path: array for path, array in arrays.items() if "backbone" in path})
    start = start_run(experiment, frozenset(params), tmp_path / "run", None)
    count = sum(path.startswith("backbone.") for path in norms_of(detector))
    assert f"{count} batch norms without statistics, measured on 64 tr" in start.decision
    measured = folded_detector(experiment)
    measure_norms(measured, experiment, norms_of(measured))
    for path, array in arrays_of(measured).items():
        assert np.array_equal(start.state.stats[path], array), path
