"""--profile of every verb that runs steps or batches."""

import shutil

import pytest

from stillbox.cli.main import main
from stillbox.profiling.steps import ProfileSteps
from stillbox.training import loop
from stillbox.training.loop import Outcome

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")


def summary_of(folder):
    (path,) = folder.glob("plugins/profile/*/summary.txt")
    return path.read_text()


def test_evaluation_says_where_the_time_of_a_batch_goes(stillbox, trained, tmp_path):
    code, out, err = stillbox("evaluate", trained, "--output", tmp_path, "--profile", "2,2")
    assert code == 0
    assert "trace of steps 2 to 2: open" in err
    assert "a step takes" not in out  # scores are for other programs to read
    text = summary_of(tmp_path)
    assert "program jit_detect on 1 CPU device; 1 step" in text
    assert "decoding and NMS\n" in text
    assert "%  backbone\n" in text


def test_batches_are_counted_over_all_checkpoints(stillbox, trained, tmp_path):
    """Two checkpoints of two batches each: the third batch is the second one's first."""
    words = ["--step", "all", "--output", tmp_path, "--profile", "3,4"]
    assert stillbox("evaluate", trained, *words).code == 0
    assert "; 1 step" in summary_of(tmp_path)


def test_prediction_says_where_the_time_of_an_image_goes(stillbox, trained, scenes, tmp_path):
    photos = sorted((scenes / "images/val").iterdir())[:3]
    words = ["--output", tmp_path, "--profile", "2,3"]
    code, out, _ = stillbox("predict", trained, *photos, *words)
    assert code == 0
    assert "trace of steps 2 to 3: open" in out
    assert "decoding and NMS\n" in summary_of(tmp_path)


def test_a_trace_that_never_began_is_no_failure(stillbox, trained, tmp_path):
    code, _, err = stillbox("evaluate", trained, "--output", tmp_path, "--profile", "3,4")
    assert code == 0
    assert "warning: nothing was traced: there was no step 3 in this run" in err


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_other_texts_than_steps_are_refused(stillbox, trained, scenes, tmp_path, verb):
    photos = sorted((scenes / "images/val").iterdir())[:1] if verb == "predict" else []
    words = [verb, trained, *photos, "--output", tmp_path, "--profile", "3"]
    code, _, err = stillbox(*words)
    assert code == 2
    assert "--profile: '3' is not the first and the last step of a trace" in err


def test_the_front_doors_hand_it_on(tmp_path, monkeypatch, scenes, much_memory):
    seen = []

    def train(experiment, directory, origins, profile):
        seen.append(profile)
        return Outcome(step=1, reason="finished", scores=None)

    monkeypatch.setattr(loop, "train", train)
    monkeypatch.chdir(tmp_path)
    shutil.copy(scenes / "label_map.pbtxt", tmp_path)
    (tmp_path / "p.yaml").write_text("recipe: ssd_mobilenet_v1_300x300\nmodel: {num_classes: 6}\n")
    sets = [f"data.train.paths={scenes}/train.record-*", "data.train.label_map=label_map.pbtxt"]
    words = [word for text in sets for word in ("--set", text)]
    assert main(["model_main", "--pipeline_config_path=p.yaml", "--model_dir=run", *words]) == 0
    assert main(["model_main", "--pipeline_config_path=p.yaml", "--model_dir=run", *words,
                 "--profile", "5,8"]) == 0  # fmt: skip
    override = "{ train: { checkpoint: { path: '' }, train_file_pattern: x/train-* } }"
    words = ["retinanet", "--model_dir=run", f"--params_override={override}"]
    assert main([*words, "--profile", "50,53"]) == 0
    assert seen == [None, ProfileSteps(5, 8), ProfileSteps(50, 53)]
