"""Crops of boxes from a single map, as the functions of other libraries make them."""

import jax.numpy as jnp

from stillbox.boxes.crops import cell_samples, edge_samples, gathered


def crop_and_resize(features, boxes, *, size, extent, outside, compute=gathered):
    """Returns bilinear samples of one map, evenly spaced from edge to edge of each box.

    As the original's `crop_and_resize`; see `edge_samples`.
    """
    return _crops(features, edge_samples(boxes, extent, size=size, outside=outside), compute)


def roi_align(features, boxes, *, size, samples, extent, window, compute=gathered):
    """Returns the means of bilinear samples in the cells of each box (arXiv:1703.06870).

    As torchvision's `roi_align(aligned=True)`; see `cell_samples`.
    """
    points = cell_samples(boxes, extent, window, size=size, samples=samples)
    return _crops(features, points, compute)


def _crops(features, samples, compute):
    levels = jnp.zeros(samples.rows.indices.shape[0], jnp.int32)
    return compute([jnp.asarray(features)], levels, samples)
