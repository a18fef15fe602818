"""The command line of TensorFlow Model Garden."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stillbox.cli.main import build_parser, main
from stillbox.cli.verbs import meant
from tests.cli.conftest import refused as refused
from tests.cli.conftest import stillbox as stillbox

COCO = "--experiment=retinanet_resnetfpn_coco"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((COCO, "--params_override=task.model.head.num_conv=3"), ("num_convs",)),
        (("--experiment=retinanet_resnetfpn",), ("retinanet_resnetfpn_coco", "--experiment")),
        ((COCO, "--gin_params=a"), ("--gin_params", "--params_override")),
        ((COCO, "--config_file=absent.yaml"), ("absent.yaml",)),
    ],
)
def test_refusals(
    words: tuple[str, ...],
    parts: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is written."""
    directory = tmp_path / "run"
    code = main(["train.py", "--mode=train", f"--model_dir={directory}", *words])
    assert code == 2
    error = capsys.readouterr().err
    assert all(part in error for part in parts), error
    assert not directory.exists()


def test_train_py_is_the_program_whose_flags_are_given(refused: Callable[..., str]) -> None:
    """The first generation of the Object Detection API has a `train.py` too."""
    for words in (("--train_dir=a",), ("-pipeline_config_path=absent.config", "--train_dir=a")):
        assert "stillbox legacy_train: " in refused("train.py", *words)
    assert "stillbox model_garden: " in refused("train.py", COCO, "--mode=train")


def test_commands_of_the_page_are_accepted() -> None:
    """All of their flags exist; training itself is tested with the verbs that it shares."""
    page = (Path(__file__).parents[4] / "docs" / "model_garden.md").read_text()
    text = page.split("```text\n")[1].split("```")[0].replace("\\\n", "")
    for line in text.splitlines():
        program, *words = line.split()[1:]
        verb = next(verb.name for verb in meant(program) if verb.about)
        assert build_parser(verb).parse_args([verb, *words]).experiment == COCO.partition("=")[2]
