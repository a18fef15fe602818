"""Settings per replica as groups of images."""

from dataclasses import replace

import pytest

from stillbox.experiment.replicas import batch_norms, replicas_as_groups
from stillbox.experiment.schema import BatchNorm, ConvHyperparams, Fpn, OneStage

MINE, OURS = BatchNorm(statistics="per_replica", decay=0.5), BatchNorm(decay=0.7)
MODEL = OneStage(neck=Fpn(conv=ConvHyperparams(batch_norm=MINE)))


@pytest.mark.parametrize(
    ("replicas", "meaning"),
    [
        (4, BatchNorm(statistics="groups", group_size=8, decay=0.5)),
        (32, BatchNorm(statistics="groups", group_size=1, decay=0.5)),
        (1, BatchNorm(decay=0.5)),
    ],
)
def test_a_replica_is_so_many_images_and_a_single_one_is_the_batch(replicas, meaning):
    changed = replicas_as_groups(MODEL, 32, replicas)
    assert changed.neck.conv.batch_norm == meaning
    assert replace(changed, neck=MODEL.neck) == MODEL


def test_a_model_without_per_replica_is_unchanged():
    model = replace(MODEL, neck=Fpn(conv=ConvHyperparams(batch_norm=OURS)))
    assert replicas_as_groups(model, 32, 8) is model


def test_all_batch_norms_are_found_with_their_paths():
    found = dict(batch_norms(MODEL))
    assert found["model.neck.conv.batch_norm"] == MINE
    assert found["model.backbone.conv.batch_norm"] == MODEL.backbone.conv.batch_norm
