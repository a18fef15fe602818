"""All refusals of a config at once: each as if it were alone, and none that is not."""

import random

import pytest

from stillbox.errors import UserError
from stillbox.experiment.refusals import find_refusals
from stillbox.experiment.resolve import resolve
from tests.experiment.fuzzing import corpus, mutate
from tests.experiment.sample import SAMPLE

# Each of them is refused on its own, in another part of the file.
PIPELINE_FAULTS = (
    ("num_classes: 3", "num_clases: 3"),
    ("width: 192", "width: '192'"),
    ("RELU_6", "RELU6"),
    ("  num_steps: 400", "  num_steps: 400 use_multiclass_scores: true"),
    ('"val.record"', '"val.record" } load_instance_masks: true external_input_reader { '),
)
YAML = """recipe: ssd_mobilenet_v1_300x300
model:
  num_classes: 3
  neck: {kind: ssd_layers, depthwise: false}
  loss: {classification_weight: 1.0}
train:
  batch_size: 8
  augmentations:
  - {kind: random_horizontal_flip, probability: 0.5}
  - {kind: ssd_random_crop}
"""
YAML_FAULTS = (
    ("num_classes: 3", "num_classes: three"),
    ("kind: ssd_layers", "kind: ssd_layer"),
    ("classification_weight", "clasification_weight"),
    ("batch_size: 8", "batch_size: true"),
    ("probability: 0.5", "probability: often"),
    ("ssd_random_crop", "ssd_random_cropp"),
)
DICTIONARY = """type: retinanet
architecture: {backbone: resnet, num_classes: 91}
train:
  total_steps: 4
  train_batch_size: 64
  optimizer: {type: momentum}
eval: {type: box}
"""
DICTIONARY_FAULTS = (
    ("backbone: resnet", "backbone: resnett"),
    ("num_classes: 91", "num_classes: 1"),
    ("total_steps", "total_stepps"),
    ("64", "many"),
    ("momentum", "sgdd"),
    ("box", "mask"),
)
CASES = {
    "pipeline.config": (SAMPLE, PIPELINE_FAULTS),
    "experiment.yaml": (YAML, YAML_FAULTS),
    "dictionary.yaml": (DICTIONARY, DICTIONARY_FAULTS),
}


def said(error):
    return error.where, error.what.partition("\n")[0]


@pytest.mark.parametrize("name", CASES)
def test_every_refusal_is_found_with_its_place_and_nothing_else(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, faults = CASES[name]
    path = tmp_path / name
    path.write_text(text)
    assert find_refusals(path).errors == ()
    whole = text
    alone = []
    for sound, wrong in faults:
        assert whole.count(sound) >= 1, sound
        path.write_text(text.replace(sound, wrong, 1))
        with pytest.raises(UserError) as caught:
            resolve(path)
        alone.append(caught.value.what.partition("\n")[0])
        whole = whole.replace(sound, wrong, 1)
    path.write_text(whole)
    found = find_refusals(path)
    assert {what for what in alone if what not in {said(e)[1] for e in found.errors}} == set()
    # The last fault of the pipeline.config is two.
    assert len(found.errors) <= len(faults) + (name == "pipeline.config")
    assert found.read is not None


def test_what_is_refused_of_overrides_stands_beside_the_rest(tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text(YAML.replace("batch_size: 8", "batch_size: true"))
    found = find_refusals(path, ["model.heigt=3", "train.steps=7", "train.steps=x"])
    assert [error.where for error in found.errors] == [
        f"{path}:7:3",
        "--set model.heigt=3",
        "--set train.steps=x",
    ]
    assert found.read.experiment.train.steps == 7
    assert found.touched == {"train", "model"}


def test_a_refused_detector_does_not_hide_what_else_is_refused(tmp_path):
    path = tmp_path / "p.config"
    path.write_text(
        "model { center_net { num_classes: 3 } }\ntrain_config { use_multiclass_scores: true\n"
        "optimizer { sgd { } } }\neval_config { eval_instance_masks: true }"
    )
    errors = find_refusals(path).errors
    assert sorted(error.where.removeprefix(f"{path}:") for error in errors) == [
        "1:9", "2:16", "3:13", "4:15"
    ]  # fmt: skip
    path.write_text("train_config { batch_size: 'x' }")
    assert [error.what for error in find_refusals(path).errors] == [
        "batch_size: 'x' is not an uint32",
        "there is no model in this file",
    ]


def test_what_cannot_be_parsed_is_one_refusal(tmp_path):
    path = tmp_path / "e.yaml"
    for text in ("train: [", "5", "- 1", "just words"):
        path.write_text(text)
        assert len(find_refusals(path).errors) == 1
    (error,) = find_refusals(tmp_path / "nowhere.yaml").errors
    assert "there is no file" in error.what


def test_damaged_files_end_in_refusals_and_agree_with_resolve(tmp_path):
    rng, texts = random.Random(1), corpus()[:6]
    for number in range(60):
        suffix, text = rng.choice(texts)
        path = tmp_path / f"{number}{suffix}"
        path.write_bytes(mutate(text, rng))
        errors = find_refusals(path).errors
        try:
            resolve(path)
        except UserError as error:
            # Rules are not the readers'.
            assert not errors or said(errors[0]) == said(error)
        else:
            assert errors == ()
