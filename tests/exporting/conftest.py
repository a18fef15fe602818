"""One trained model and images for all exports."""

import dataclasses

import cv2
import numpy as np
import pytest

from stillbox.api import load, load_model


@pytest.fixture(scope="session")
def model(trained_once):
    """A tiny trained detector, 64 x 64 pixels; its detections have low scores."""
    return load_model(trained_once)


@pytest.fixture(scope="session")
def checkpoint(trained_once):
    """The predictor of the same model."""
    return load(trained_once)


@pytest.fixture(scope="session")
def images(scenes):
    """Three pictures of different sizes, as `[h, w, 3]` RGB."""
    files = sorted((scenes / "images/val").iterdir())[:3]
    return [cv2.cvtColor(cv2.imread(str(file)), cv2.COLOR_BGR2RGB) for file in files]


@pytest.fixture(scope="session")
def blank():
    """An image that shows nothing."""
    return np.zeros((50, 70, 3), np.uint8)


@pytest.fixture(scope="session")
def distinct(model):
    """The model with other kernels: its scores lie apart, which fixes the order of detections."""
    rng = np.random.default_rng(0)
    params = {
        path: rng.normal(0, 1.5 / np.sqrt(np.prod(array.shape[:3])), array.shape).astype("f")
        if path.endswith("kernel")
        else array
        for path, array in model.params.items()
    }
    return dataclasses.replace(model, params=params)
