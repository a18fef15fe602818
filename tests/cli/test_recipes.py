"""`stillbox recipes`: what the head of each recipe's file says."""

import json
import re

import pytest

from stillbox.checking.memory.estimate import estimate
from stillbox.checking.memory.traced import sizes_of
from stillbox.experiment.known_weights import known_weights
from stillbox.experiment.recipes import recipe_names, recipe_path
from stillbox.experiment.recipes.headers import read_header
from stillbox.experiment.resolve import resolve
from stillbox.models.abstract import abstract_detector


def test_all_recipes_are_listed_with_all_columns(stillbox):
    code, out, err = stillbox("recipes")
    assert (code, err) == (0, "")
    assert all(name in out for name in recipe_names())
    coco, drawn, bccd = (part.partition("AP on ")[2] for part in out.split("recipe   ")[1:])
    assert coco.startswith("COCO\n")
    assert "retinanet_nasfpn" in coco
    assert "demo_scenes" not in coco
    assert drawn.startswith("drawn scenes\ndemo_scenes")
    assert bccd.startswith("BCCD\nssd_mobilenet_v1_bccd")
    content = json.loads(stillbox("recipes", "--json").out)
    assert [row["name"] for row in content] == list(recipe_names())
    fpn = next(row for row in content if row["name"] == "ssd_mobilenet_v1_fpn_640x640")
    assert (fpn["ap"], fpn["input"], fpn["hardware"]) == ("29.7", [640, 640], "8 TPU cores")


@pytest.mark.parametrize("name", recipe_names())
def test_no_header_lacks_an_entry(name):
    header = read_header(name)
    assert header.about
    assert header.batch == resolve(name).experiment.train.batch_size
    assert float(header.ap.split(" to ")[0]) > 10


@pytest.mark.parametrize("name", recipe_names())
def test_weights_of_a_command_can_be_had_by_name_or_are_explained(name):
    text = recipe_path(name).read_text()
    for weights in re.findall(r"^#.* train\.fine_tune\.checkpoint=(\S+)", text, re.MULTILINE):
        known = known_weights().get(weights)
        explained = weights == "resnet_v1_50_v2.ckpt" and "format V1, which is refused" in text
        assert explained or (known and name in known.recipes)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "demo_scenes" else pytest.mark.slow)
        for name in recipe_names()
    ],
)
def test_sizes_in_the_headers_are_those_of_the_models(name):
    header, experiment = read_header(name), resolve(name).experiment
    params = abstract_detector(experiment.model, "float32").params
    assert header.parameters == round(sum(array.size for array in params.values()) / 1e6, 1)
    needs = estimate(experiment, sizes_of(experiment.model, experiment.train), "gpu").device
    assert header.memory == pytest.approx((needs.low + needs.high) / 2 / 2**30, rel=0.15)
