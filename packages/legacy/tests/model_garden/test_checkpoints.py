"""Names of Model Garden in checkpoints, and imports by them.

`packages/legacy/tools/model_garden_runs.py` makes the goldens.
"""

import json
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from packages.legacy.tools.model_garden_runs import (
    BACKBONE_SIDE,
    BACKBONES,
    GOLDENS,
    images,
    samples,
    weight,
)
from stillbox.checkpoints.importer import ImportOptions, read_weights
from stillbox.checkpoints.names import (
    object_paths,
)
from stillbox.experiment.schema import Experiment
from stillbox.experiment.variants import implementation_of
from stillbox.models.build import abstract_detector
from stillbox.models.layers.hyperparams import ShapesOnly
from stillbox.models.parts import BuildOptions
from stillbox.models.paths import variables_of
from stillbox_legacy.model_garden import read_garden
from stillbox_legacy.model_garden.checkpoint_names import KerasLayer, chain, number_layers
from tests.helpers import refused

FILE = GOLDENS / "checkpoint.yaml"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix of the checkpoint."""
    folder = tmp_path_factory.mktemp("garden")
    with zipfile.ZipFile(FILE.with_suffix(".zip")) as archive:
        archive.extractall(folder)
    return folder / "ckpt-1"


def experiment(override: str = "") -> Experiment:
    """The one that the checkpoint was written from."""
    start = FILE.read_text().splitlines()[0].removeprefix("# ")
    return read_garden(experiment=start, config_files=(FILE,), params_override=override).experiment


@cache
def variables() -> dict[str, Any]:
    """What has the shapes of all arrays of the detector."""
    _, params, stats = abstract_detector(experiment().model, "float32")
    return {**params, **stats}


@pytest.mark.parametrize(
    ("modules", "parts"),
    [
        ("all", {"backbone", "neck", "head"}),
        ("backbone", {"backbone"}),
        ("[backbone, decoder]", {"backbone", "neck"}),
        ("decoder", {"neck"}),
    ],
)
def test_modules_are_taken_from_a_checkpoint_of_the_original(
    checkpoint: Path, modules: str, parts: set[str]
) -> None:
    """Each variable holds its number, so that a name that is another's would show."""
    given = f"{{task: {{init_checkpoint: {checkpoint}, init_checkpoint_modules: {modules}}}}}"
    read = experiment(given)
    options = ImportOptions.of_training(read.train.fine_tune)
    report, arrays = read_weights(variables(), read.model, checkpoint, options)
    assert {path.partition(".")[0] for path in arrays} == parts
    assert not report.missing and not report.mismatched
    keys = [key for key, _ in json.loads(FILE.with_suffix(".json").read_text())]
    names = object_paths(read.model, variables())
    for path, array in arrays.items():
        assert set(array.ravel()) == {keys.index(names[path])}, path


def test_a_checkpoint_that_lacks_a_variable_is_refused(checkpoint: Path) -> None:
    """As the original does, which asserts that all of a module is found."""
    read = experiment(f"task.init_checkpoint={checkpoint},task.model.head.num_convs=2")
    _, params, stats = abstract_detector(read.model, "float32")
    options = ImportOptions.of_training(read.train.fine_tune)
    with refused("ckpt-1"):
        read_weights({**params, **stats}, read.model, checkpoint, options)


def backbone_of(name: str, rng: Any) -> tuple[Any, nnx.Module]:
    """A model with one of the original's backbones, and the backbone."""
    model = read_garden(
        experiment="retinanet_mobile_coco",
        params_override=json.dumps(
            {"task": {"model": {"backbone": BACKBONES[name], "decoder": {"type": "fpn"}}}}
        ),
    ).experiment.model
    options = BuildOptions(dtype=jnp.float32, freeze_norm=True, rng=rng)
    taps = tuple(model.backbone.levels.values())
    return model, implementation_of(model.backbone)(model.backbone, taps, options)


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_have_the_variables_of_the_original(name: str) -> None:
    """Layers behind the last block are left out, as no detector reads them."""
    model = backbone_of(name, ShapesOnly())[0]
    built = nnx.eval_shape(lambda: backbone_of(name, ShapesOnly())[1])
    arrays = {f"backbone.{path}": array for path, array in variables_of(built).items()}
    ours = {key: list(arrays[path].shape) for path, key in object_paths(model, arrays).items()}
    theirs = json.loads((GOLDENS / "backbones.json").read_text())[name]
    assert len(ours) == len(arrays)
    assert {key: theirs.get(key) for key in ours} == ours
    behind = {int(key.split("/")[1].rpartition("-")[2]) for key in theirs.keys() - ours.keys()}
    last = max(int(key.split("/")[1].rpartition("-")[2]) for key in ours)
    assert all(number > last for number in behind)


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_have_the_maps_of_the_original(name: str) -> None:
    """Norm and some values of each level."""
    model, backbone = backbone_of(name, np.random.default_rng(0))
    variables = {f"backbone.{path}": array for path, array in variables_of(backbone).items()}
    for path, key in object_paths(model, variables).items():
        variables[path][...] = jnp.asarray(weight(key, variables[path].shape))
    maps = backbone(jnp.asarray(images(BACKBONE_SIDE) / 255 - 0.5), train=False, dropout_key=None)
    with np.load(GOLDENS / "backbones.npz") as expected:
        for level, computed in zip(model.backbone.levels, maps, strict=True):
            wanted = expected[f"{name}/{level}"]
            sampled = samples(np.asarray(computed))
            np.testing.assert_allclose(sampled, wanted, rtol=1e-4, atol=1e-4, err_msg=str(level))


def test_layers_are_numbered_from_the_deepest_on() -> None:
    """Layers of one depth are in the order in which a search from the outputs finds them."""
    start = chain(KerasLayer(), "stem")
    left, right = chain(start, "left", ""), chain(start, "right")
    total = KerasLayer((right, left))
    outputs = [chain(total, "end"), chain(right, "beside")]
    assert list(number_layers(outputs)) == ["stem", "left", "right", "end", "beside"]
    assert np.all(list(number_layers(outputs).values()) == np.arange(5))
