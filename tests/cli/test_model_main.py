"""`stillbox model_main`: the flags of the Object Detection API and what they did."""

import json
from contextlib import nullcontext

import pytest

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.remote_directory import ModelPlace
from stillbox.cli import detection_api
from stillbox.cli.main import main
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.training import loop, watching
from stillbox.training.loop import Outcome
from tests.experiment.sample import SAMPLE

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")

NEEDED = ["--pipeline_config_path=p", "--model_dir=r"]
FREE = ("train.steps", "train.checkpoint_every", "train.evaluate_every")


@pytest.fixture
def words(settings):
    """The small experiment, without what flags decide here."""
    pairs = list(zip(*[iter(settings())] * 2, strict=True))
    kept = [pair for pair in pairs if not pair[1].startswith(FREE)]
    return [word for pair in kept for word in pair]


@pytest.fixture
def config(here, words):
    """A config that leaves open what a pipeline.config cannot say, and what makes it small."""
    (here / "p.yaml").write_text("recipe: ssd_mobilenet_v1_300x300\nmodel: {num_classes: 6}\n")
    return ["--pipeline_config_path=p.yaml", "--model_dir=run", *words]


@pytest.fixture
def trained_with(monkeypatch):
    """Takes the place of training and remembers what it was called with."""
    seen = []

    def train(experiment, directory, origins, profile, hint):
        assert not hint  # the verb has no --minutes
        seen.append((experiment, directory))
        return Outcome(step=1, reason="finished", scores=None)

    monkeypatch.setattr(loop, "train", train)
    return seen


@pytest.fixture
def watched_with(monkeypatch):
    """Takes the place of the watcher and remembers what it was made with."""
    seen = []

    class Watcher:
        def __init__(self, *arguments, progress, observer):
            seen.append(arguments)

        def run(self):
            return ()

    monkeypatch.setattr(watching, "CheckpointWatcher", Watcher)
    return seen


@pytest.mark.parametrize("verb", ["model_main", "model_main.py", "model_main_tf2.py"])
def test_without_checkpoint_dir_it_trains_evaluates_and_resumes(stillbox, config, here, verb):
    run = [verb, *config, "--checkpoint_every_n=1", "--sample_1_of_n_eval_examples=3"]
    out, err = stillbox(*run, "--num_train_steps", 2, "--alsologtostderr").ended()
    assert out.startswith("finished at step 2; run")
    assert ModelDirectory.open("run").steps() == (1, 2)
    # Six images, every third of them.
    assert "step 1: AP " in err
    assert "on 2 images" in err
    assert [s for s, _ in read_history(here / "run" / HISTORY).evaluations] == [1, 2]
    _, err = stillbox(*run, "--num_train_steps", 3).ended()
    assert "resuming at step 2 from run" in err
    assert ModelDirectory.open("run").steps() == (1, 2, 3)


@pytest.mark.parametrize("verb", ["model_main_tf2.py", "train", "legacy_train"])
def test_the_folder_of_another_run_is_refused_with_the_line_that_starts_from_it(
    refused, config, here, trained_with, verb
):
    (here / "run").mkdir()
    files = [here / "run" / name for name in ("ckpt-7.index", "ckpt-7.data-00000-of-00001")]
    for file in files:
        file.write_bytes(b"theirs")
    words = {
        "model_main_tf2.py": [*config, "--checkpoint_format=tf2"],
        "train": ["p.yaml", "--model-dir=run", *config[2:]],
        "legacy_train": ["--pipeline_config_path=p.yaml", "--train_dir=run", *config[2:]],
    }
    message = refused(verb, *words[verb])
    assert "run: the folder holds the run of another program; its newest checkpoint is" in message
    assert "--set train.fine_tune.checkpoint=run/ckpt-7 --set train.fine_tune.scope=" in message
    assert sorted((here / "run").iterdir()) == sorted(files)
    assert not trained_with


def test_flags_become_overrides(stillbox, config, trained_with):
    flags = ["--num_train_steps=70", "--train_batch_size", "12", "--checkpoint_every_n=7"]
    stillbox("model_main", *config, *flags, "--sample_1_of_n_eval_examples=5").ended()
    ((experiment, directory),) = trained_with
    assert str(directory) == "run"
    assert experiment.train.steps == 70
    # --set comes last: whoever writes it means it.
    assert experiment.train.batch_size == 4
    assert experiment.train.checkpoint_every == 7
    assert experiment.data.evaluation.sample_1_of_n == 5


def test_config_override_is_merged_into_a_pipeline_config(
    stillbox, refused, config, here, trained_with
):
    (here / "p.config").write_text(SAMPLE)
    text = ("--config_override", "train_config { batch_size: 3 } model { ssd { num_classes: 5 } }")
    flags = ["--pipeline_config_path=p.config", "--model_dir=run", *text]
    stillbox("model_main", *flags, "--set", "train.steps=2").ended()
    ((experiment, _),) = trained_with
    assert (experiment.train.batch_size, experiment.model.num_classes) == (3, 5)
    message = refused("model_main", *config, *text)
    assert "--config_override: p.yaml is no pipeline.config" in message
    assert "fix: write --set FIELD=VALUE" in message


def test_every_checkpoint_is_evaluated_unless_the_config_says_otherwise(
    stillbox, config, trained_with
):
    words = ["model_main", *config, "--checkpoint_every_n=9"]
    err = stillbox(*words).err
    assert trained_with[-1][0].train.evaluate_every == 9
    assert "note: every checkpoint is evaluated, one in 9 steps" in err
    assert err.count("warning:") == len({w for w in err.splitlines() if w.startswith("warning:")})
    stillbox(*words, "--set", "train.evaluate_every=0")
    assert trained_with[-1][0].train.evaluate_every == 0
    stillbox(*words, "--set", "data.evaluation.paths=[]")
    assert trained_with[-1][0].train.evaluate_every == 0


def test_evaluating_training_records_belongs_to_checkpoint_dir(stillbox, config, trained_with):
    _, _, err = stillbox("model_main", *config, "--eval_training_data")
    assert "note: without --checkpoint_dir only the training itself evaluates" in err
    (((experiment), _),) = trained_with
    assert "val" in experiment.data.evaluation.paths[0]


def test_with_checkpoint_dir_it_only_evaluates(stillbox, words, trained, here):
    flags = ["--pipeline_config_path", trained / "experiment.yaml", "--model_dir", here / "evals"]
    flags += ["--checkpoint_dir", trained / "checkpoints", "--run_once"]
    out, _ = stillbox("model_main", *flags, *words).ended()
    assert out.startswith("step 2: AP ")
    assert out.endswith(f"1 checkpoint scored; results in {here}/evals/eval_validation_data\n")
    metrics = json.loads((here / "evals/eval_validation_data/2/metrics.json").read_text())
    assert metrics["weights"] == f"{trained}, step 2"
    assert "DetectionBoxes_Precision/mAP" in metrics["object_detection_api"]


@pytest.mark.parametrize(("flags", "patience"), [
    ([], {}), (["--run_once"], {"once": True}), (["--run_once=true"], {"once": True}),
    (["--run_once=False"], {}), (["--run_once", "--norun_once"], {}),
    (["--num_train_steps=9"], {"last_step": 9}), (["--eval_timeout=2.5"], {"timeout": 2.5}),
    (["--max_eval_retries", "3"], {"retries": 3}), (["--max_eval_retries=-1"], {}),
])  # fmt: skip
def test_flags_say_how_long_it_waits(stillbox, config, watched_with, flags, patience):
    words = ["model_main", *config, "--checkpoint_dir=run", "--set", "train.steps=4"]
    # Of steps, the last word is --set's; here it is the flag's.
    words = words if not patience.get("last_step") else words[:-2]
    stillbox(*words, *flags).ended()
    ((_, checkpoints, output, seen, *_),) = watched_with
    assert (str(checkpoints), str(output)) == ("run", "run/eval_validation_data")
    assert seen == watching.WatchPolicy(**{"last_step": 4, **patience})


@pytest.mark.parametrize("flag", ["--eval_training_data", "--eval_on_train_data"])
@pytest.mark.parametrize(("more", "nth"), [([], 5), (["2"], 2)])
def test_training_records_can_be_evaluated(stillbox, config, scenes, watched_with, flag, more, nth):
    words = ["model_main", *config, "--checkpoint_dir=run", flag]
    words += ["--set", "data.evaluation.annotations=val.json"]
    words += [f"--sample_1_of_n_eval_on_train_examples={n}" for n in more]
    stillbox(*words).ended()
    ((experiment, _, output, *_),) = watched_with
    assert output.name == "eval_training_data"
    assert experiment.data.evaluation.paths == experiment.data.train.paths
    assert experiment.data.evaluation.label_map == f"{scenes}/label_map.pbtxt"
    assert experiment.data.evaluation.annotations == ""
    assert experiment.data.evaluation.sample_1_of_n == nth
    assert not experiment.data.evaluation.shuffle


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--use_tpu"], "--use_tpu is not supported\n  fix: all devices of this machine are used"),
        (["--use_tpu=true"], "--use_tpu is not supported"),
        (["--tpu_name=grpc://me"], "--tpu_name is not supported"),
        (["--gcp_project=p"], "--gcp_project is not supported"),
        (["--num_workers", "4"], "--num_workers is not supported\n  fix: --coordinator"),
        (["--mode=eval"], "--mode is not supported\n  fix: leave it out to train, give --check"),
        (["--hparams_overrides=a=1"], "write --set FIELD=VALUE"),
    ],
)
def test_flags_of_clouds_are_refused_by_name(refused, config, flags, reason):
    assert reason in refused("model_main", *config, *flags)


@pytest.mark.parametrize(
    "flags", [["--use_tpu=false"], ["--record_summaries=false", "--logtostderr", "--verbosity=1"]]
)
def test_flags_that_request_the_default_are_accepted(stillbox, config, trained_with, flags):
    stillbox("model_main", *config, *flags).ended()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model_dir=run"], "--pipeline_config_path is missing"),
        (["--pipeline_config_path=p"], "--model_dir is missing"),
        ([*NEEDED, "--run_once=maybe"], "'maybe' is neither true nor false"),
        ([*NEEDED, "--num_steps=3"], "there is no option --num_steps"),
    ],
)
def test_a_wrong_command_line_is_refused(stillbox, words, message):
    _, err = stillbox("model_main", *words).ended(2)
    assert message in err


def test_ctrl_c_ends_the_watch(stillbox, words, trained, here, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", interrupt)
    flags = ["--pipeline_config_path", trained / "experiment.yaml", "--model_dir", here / "evals"]
    words = ["model_main", *flags, "--checkpoint_dir", trained, *words]
    out, err = stillbox(*words, "--set", "train.steps=9").ended(130)
    assert f"waiting for a checkpoint after step 2 in {trained}; step 9 is the last" in out
    assert out.splitlines()[-1].startswith("stopped after 1 checkpoint; results in ")
    assert "Traceback" not in err


def test_the_first_generation_writes_its_checkpoints_into_a_bucket_too(monkeypatch, tmp_path):
    place, done = ModelPlace(tmp_path), []
    monkeypatch.setattr(detection_api, "training_place", lambda directory: nullcontext(place))
    train = lambda resolved, directory, profile: done.append(directory) or 0  # noqa: E731
    monkeypatch.setattr(detection_api, "run_training", train)
    write = lambda directory, form, say: done.append((directory, form))  # noqa: E731
    monkeypatch.setattr("stillbox.checkpoints.original_checkpoints.write_checkpoints", write)
    words = ["--train_dir=s3://bucket/run", "--pipeline_config_path=demo_scenes"]
    assert main(["legacy_train", *words]) == 0
    assert done == [place, (tmp_path, "tf1")]


@pytest.mark.parametrize("main_process", [True, False])
def test_one_process_of_a_job_writes_the_original_s_checkpoints(
    main_process, monkeypatch, tmp_path
):
    monkeypatch.setattr("stillbox.devices.job.is_main_process", lambda: main_process)
    written = []
    write = lambda *arguments: written.append(arguments)  # noqa: E731
    monkeypatch.setattr("stillbox.checkpoints.original_checkpoints.write_checkpoints", write)
    with detection_api.writing_checkpoints(tmp_path, "tf2"):
        pass
    assert len(written) == main_process
