import pytest

from stillbox.cli.arguments import parse_step
from stillbox.cli.export import image_size
from stillbox.cli.main import build_parser, main
from stillbox.experiment.rules.missing import CHECKPOINT
from tests.helpers import refused

LONG = "9" * 5000


@pytest.mark.parametrize(
    "words",
    [
        ["train", "demo_scenes", f"--steps={LONG}"],
        ["train", "demo_scenes", "--steps", "9" * 30],
        ["train", "demo_scenes", "--epochs=nan"],
        ["train", "demo_scenes", "--epochs=1e309"],
        ["predict", "m", "i.jpg", "--min-score=inf"],
        ["predict", "m", "i.jpg", f"--tile={LONG}"],
        ["model_main", f"--num_train_steps={LONG}"],
        ["model_main", "--eval_timeout=nan"],
        ["ssd_resnet34", "--epochs=inf"],
        ["ssd_resnet34", f"-b={LONG}"],
        ["exporter_main_v2", "--input_type=--", "--trained_checkpoint_dir=--"],
        ["train", "--coordinator=--", "--processes=--", "c"],
    ],
)
def test_an_odd_number_is_a_sentence(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 2
    assert "fix: `stillbox" in said


@pytest.mark.parametrize(
    ("verb", "option", "name", "value"),
    [
        ("train", "--model-dir=--", "model_dir", "--"),
        ("train", "--set=train.fine_tune.checkpoint=--", "overrides", {CHECKPOINT: "--"}),
        ("model_main", "--config_override=--", "config_override", "--"),
        ("ssd_resnet34", "--recipe_cache=--", "recipe_cache", "--"),
    ],
)
def test_two_dashes_behind_an_equals_sign_are_a_value(verb, option, name, value):
    needed = {"train": ["c"], "model_main": ["--pipeline_config_path=c", "--model_dir=m"]}
    parsed = build_parser(verb).parse_args([verb, *needed.get(verb, []), option])
    given = getattr(parsed, name)
    assert (given if isinstance(given, dict) else str(given)) == value


@pytest.mark.parametrize("text", [LONG, f"{LONG},{LONG}", "²,²", "٣,٣", "-1,5"])
def test_texts_with_numbers_are_refused_with_a_sentence(text):
    with refused("--image-size"):
        image_size(text, "--image-size")
    with refused("--step"):
        parse_step(text)


def test_numbers_of_64_bits_are_taken():
    most = str(2**63 - 1)
    assert build_parser("train").parse_args(["train", "c", f"--steps={most}"]).steps == 2**63 - 1
