import pytest

from stillbox.cli.main import main
from stillbox.experiment.params_dict import read_params
from stillbox.experiment.params_dict.keras_dialect import PROGRAM
from stillbox.experiment.resolve import resolve
from tests.helpers import refusal


@pytest.mark.parametrize(
    ("override", "today"),
    [
        ("train.batch_size=8", "it is train.train_batch_size"),
        ("eval.batch_size=8", "it is eval.eval_batch_size"),
        ("predict.batch_size=8", "it is predict.predict_batch_size"),
        ("norm_activation.activation=relu", "it is batch_norm_activation"),
        ("train.optimizer.nesterov=false", ""),
        ("strategy_type=mirrored", ""),
        ("strategy_config.num_gpus=8", ""),
        ("eval.num_images_to_visualize=4", ""),
        ("eval.input_sharding=true", ""),
        ("retinanet_parser.num_channels=3", ""),
    ],
)
def test_a_key_of_the_third_dialect_is_refused_by_its_name(override, today):
    caught = refusal(read_params, params_override=override)
    assert PROGRAM in caught.what
    assert "Nesterov" in caught.what
    assert "stillbox model_garden" in caught.fix
    assert today in caught.fix


@pytest.mark.parametrize(
    "text",
    [
        "strategy_type: mirrored\ntrain: {batch_size: 4}\n",
        "norm_activation: {activation: swish}\n",
        "train: {total_steps: 5, batch_size: 4}\n",
        "eval: {batch_size: 8}\nretinanet_parser: {use_bfloat16: true}\n",
    ],
)
def test_a_file_of_the_third_dialect_is_recognised(text, tmp_path):
    (tmp_path / "c.yaml").write_text(text)
    assert PROGRAM in refusal(resolve, tmp_path / "c.yaml").what


@pytest.mark.parametrize(
    "flag",
    ["--strategy_type=mirrored", "--num_gpus=4", "--training_file_pattern=a", "--log_steps=9"],
)
@pytest.mark.parametrize("program", ["main.py", "retinanet"])
def test_its_flags_are_refused_by_its_name(program, flag, tmp_path, capsys):
    assert main([program, f"--model_dir={tmp_path}", flag]) == 2
    said = capsys.readouterr().err
    assert f"{flag.partition('=')[0]} is not supported" in said
    assert PROGRAM in said


@pytest.mark.parametrize(
    ("text", "noted"),
    [
        ("type: retinanet\ntrain: {total_steps: 9}\n", True),
        ("train: {total_steps: 9, train_batch_size: 8}\n", False),
        ("architecture: {multilevel_features: nasfpn}\n", False),
        ("postprocess: {apply_nms: true}\n", False),
    ],
)
def test_a_file_that_could_be_of_either_has_a_note(text, noted, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    for reading in (resolve(file), read_params(config_file=file)):
        notes = [note for note in reading.notes if "all keys of this file are also of" in note]
        assert len(notes) == noted
        assert all("train.optimizer.nesterov=true" in note for note in notes)


def test_a_command_line_without_a_file_has_no_such_note():
    notes = read_params(params_override="train.total_steps=9").notes
    assert not any(PROGRAM in note for note in notes)
