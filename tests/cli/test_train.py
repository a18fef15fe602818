"""`stillbox train`: what a run leaves, and what it says when it cannot begin or go on."""

import errno
import itertools
import os
import re
import shutil
import signal
import threading

import numpy as np
import pytest

from stillbox.checkpoints import model_directory
from stillbox.checkpoints.files import DirectoryLock
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.inputs import loader
from stillbox.records.scenes import write_scenes
from stillbox.records.tfrecord import tfrecord_writer
from stillbox.training import loggers, loop, periodic, preparing
from tests.records.builders import read_records
from tests.signals import send_at

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture
def train(stillbox, settings, tmp_path):
    """The function from overrides to the answer of a run in `tmp_path / "model"`."""

    def run(*overrides, **options):
        words = settings(*overrides, **options)
        return stillbox("train", "demo_scenes", "--model-dir", tmp_path / "model", *words)

    return run


@pytest.fixture
def untrained(refused, settings, tmp_path):
    """The function from overrides to the message of a run that is refused and writes nothing."""

    def run(*overrides, words=(), **options):
        directory = tmp_path / "model"
        fields = settings(*overrides, **options)
        message = refused("train", "demo_scenes", "--model-dir", directory, *fields, *words)
        assert message.startswith("stillbox train: ")
        assert not directory.exists()
        return message

    return run


def checkpoint(directory, step, section="params"):
    return ModelDirectory.open(directory).checkpoint(step).read(section)


def test_a_run_leaves_all_that_the_other_verbs_need(trained_once):
    left = {entry.name for entry in trained_once.iterdir()}
    assert left >= {
        *("experiment.yaml", "label_map.pbtxt", "versions.json", "best.json"),
        *("checkpoints", "metrics.jsonl", "tensorboard"),
    }
    assert ModelDirectory.open(trained_once).steps() == (1, 2)
    (events,) = (trained_once / "tensorboard").iterdir()
    content = events.read_bytes()
    for name in (
        "Loss/total_loss",
        "Loss/classification_loss",
        "learning_rate",
        "DetectionBoxes_Precision/mAP@.50IOU",
    ):
        assert name.encode() in content
    for picture in ("train_input_images", "eval_side_by_side_0"):
        assert picture.encode() in content


def test_a_run_prints_its_stages_and_the_result_last(train, tmp_path):
    out, err = train("train.steps=1", evaluated=False).ended()
    assert re.fullmatch(rf"finished at step 1; {tmp_path}/model, \d+ s\n", out)
    assert err.endswith(f"next: stillbox predict {tmp_path}/model IMAGES\n")
    for line in (
        r"from scratch: .* holds no checkpoint",
        r"10 training images, batch 4 on 1 cpu device, 1,792 trainable parameters",
        r"step 1/1  loss \d.* images/s  [\d,.]+ ms a step  waiting for data \d+%",
        r"total: 0:00:\d\d, 4 images, [\d.]+ images/s in training",
        r"peak memory of the process: [\d.,]+ [GM]iB resident",
        r"inputs: \d+ images with \d+ boxes",
    ):
        assert re.search(line, err), line


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("5", "--profile: '5' is not the first and the last step of a trace"),
        ("7,3", "--profile: there are no steps from 7 to 3"),
        ("3,5", "--profile: steps 3 to 5 cannot be traced: this run has 4\n  fix: --profile 1,4"),
    ],
)
def test_steps_that_cannot_be_traced_are_refused(untrained, profile, expected):
    assert expected in untrained(words=["--profile", profile])


def test_steps_can_be_traced(stillbox, settings, tmp_path):
    words = ["--model-dir", tmp_path / "model", *settings("train.steps=2", evaluated=False)]
    stillbox("train", "demo_scenes", *words, "--profile", "1,2").ended()
    assert len(list((tmp_path / "model/plugins/profile").glob("*/perfetto_trace.json.gz"))) == 1


def test_the_yaml_of_a_model_directory_resumes_it(stillbox, trained, scenes):
    out, err = stillbox("train", trained / "experiment.yaml", "--model-dir", trained).ended()
    assert f"resuming at step 2 from {trained}" in err
    assert "step 2 of 2 is done, nothing is left" in out


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.train.paths=[]", "no records to train on"),
        ("data.train.paths=nowhere/train-*", "nowhere/train-*"),
        ("data.train.paths=PATH_TO_BE_CONFIGURED/t.record", "placeholder PATH_TO_BE_CONFIGURED"),
        ("data.train.paths=nowhere://bucket/t.record", "nothing is known of nowhere://"),
        ("data.train.label_map=", "no label map for the training records"),
        ("data.train.label_map=nowhere.pbtxt", "nowhere.pbtxt"),
        ("model.num_classes=5", "label map goes up to id 6, the model has 5"),
        ("train.freeze=[bakbone]", "'bakbone' matches no parameter"),
        ("train.fine_tune.checkpoint=nowhere.npz", "there are no such weights"),
        ("train.early_stopping={patience: 2}", "set train.evaluate_every"),
    ],
)
def test_an_untrainable_experiment_is_refused_and_nothing_is_written(untrained, override, expected):
    assert expected in untrained(override)


def test_what_check_warns_of_is_printed_before_the_run(train):
    _, err = train("train.steps=1", "train.batch_size=2", evaluated=False).ended()
    warning = err.index("batch norm takes its statistics from 2 images")
    assert warning < err.index("from scratch: ")
    assert "fix: a batch of at least 8" in err
    assert err.count("batch norm takes its statistics") == 1


def test_what_cannot_fit_is_refused_before_a_batch_is_made(untrained):
    message = untrained("train.batch_size=1000000")
    assert "the run needs at least" in message
    assert "--set train.batch_size=1000000" in message


def test_weights_of_a_run_are_a_whole_detector(stillbox, settings, trained, tmp_path):
    words = ["--model-dir", tmp_path / "own", "--weights", trained]
    classifier = "train.fine_tune.scope=classification"
    sets = settings("train.steps=1", evaluated=False)
    _, err = stillbox("train", "demo_scenes", *words, *sets).ended()
    assert "0 not wanted" in err
    # A recipe may start from a classifier; what is given wins.
    _, err = stillbox(
        *("train", "demo_scenes", "--model-dir", tmp_path / "other", "--weights", trained),
        *(*sets, "--set", classifier),
    ).ended()
    assert "0 not wanted" not in err


def test_a_run_has_the_length_that_is_asked_for(stillbox, trained):
    again = ["train", trained / "experiment.yaml", "--model-dir", trained]
    code, out, err = stillbox(*again, "--epochs", "1.2")
    assert (code, out.split(";")[0]) == (0, "finished at step 3"), err  # 12 images of 4 a step


def test_a_schedule_that_follows_a_longer_run_is_refused_with_the_way_out(train):
    cosine = "train.optimizer.schedule={kind: cosine, warmup_steps: 1}"
    assert train(cosine, "train.steps=2", evaluated=False).code == 0
    _, err = train(cosine, "train.steps=3", evaluated=False).ended(2)
    assert "train.optimizer.schedule.total_steps: 2 -> 3" in err
    assert "--set train.optimizer.schedule.total_steps=2 keeps the schedule" in err


def test_a_run_from_before_a_rule_of_keras_goes_on_as_it_began(refused, stillbox, trained):
    again = ["train", trained / "experiment.yaml", "--model-dir", trained]
    keras = ("--set", "train.optimizer.rate_in_accumulator=true")
    message = refused(*again, *keras)
    assert "train.optimizer.rate_in_accumulator: False -> True" in message
    assert "train.optimizer.rate_in_accumulator=false" in message
    out, _ = stillbox(*again, *keras, *(keras[0], keras[1].replace("true", "false"))).ended()
    assert "is done, nothing is left" in out


def test_runs_without_the_records_that_they_need_are_refused(untrained, refused, tmp_path):
    stopping = ["train.early_stopping={patience: 2}", "train.evaluate_every=1"]
    message = untrained(*stopping, evaluated=False)
    assert "early_stopping without evaluation records never stops" in message
    message = refused("train", "ssd_mobilenet_v1_300x300", "--model-dir", tmp_path / "model")
    assert "--set data.train.paths=" in message
    assert "--set data.train.label_map=" in message


def test_label_maps_of_other_classes_are_refused_before_training(untrained, tmp_path, scenes):
    (tmp_path / "cats.pbtxt").write_text("item { id: 1 name: 'cat' }")
    message = untrained(f"data.train.label_map={tmp_path}/cats.pbtxt")
    assert "has none of the classes of 27 boxes" in message
    text = (scenes / "label_map.pbtxt").read_text()
    swapped = text.replace("disc", "?").replace("ring", "disc").replace("?", "ring")
    (tmp_path / "swapped.pbtxt").write_text(swapped)
    message = untrained(f"data.evaluation.label_map={tmp_path}/swapped.pbtxt")
    assert "id 1 is 'ring'" in message


def test_data_sets_and_model_directories_as_config_lead_to_what_is_meant(
    refused, tmp_path, trained
):
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards/data.yaml").write_text("train: images\nnames: [ace]\n")
    for data in (tmp_path / "cards", tmp_path / "cards/data.yaml"):
        error = refused("train", data, "--model-dir", tmp_path / "model")
        assert f"fix: give it as --data {data}" in error
    message = refused("train", trained, "--model-dir", trained)
    assert f"fix: give {trained}/experiment.yaml" in message


def test_places_that_cannot_be_a_model_directory_are_refused(refused, settings, tmp_path):
    (tmp_path / "model").write_text("")
    message = refused("train", "demo_scenes", "--model-dir", tmp_path / "model", *settings())
    assert message.startswith(f"stillbox train: {tmp_path}/model: the model directory is a file")
    (tmp_path / "file").write_text("")
    message = refused("train", "demo_scenes", "--model-dir", tmp_path / "file/m", *settings())
    assert f"{tmp_path}/file/m" in message
    assert "Not a directory" in message


def test_a_second_trainer_in_the_same_directory_is_refused(refused, trained, monkeypatch):
    lock = DirectoryLock(trained)
    # The first removes a checkpoint after the second has seen it.
    monkeypatch.setattr(ModelDirectory, "latest_step", lambda self: 20)
    message = refused("train", trained / "experiment.yaml", "--model-dir", trained)
    assert f"process {os.getpid()} is writing into this directory" in message
    lock.release()
    monkeypatch.undo()
    # A refused run holds no lock.
    refused("train", trained / "experiment.yaml", "--model-dir", trained, "--set", "data.seed=5")
    DirectoryLock(trained).release()


def test_the_copy_of_the_experiment_beside_the_checkpoints_may_be_edited(
    refused, stillbox, trained
):
    config = trained.with_name("own.yaml")
    shutil.copy(trained / "experiment.yaml", config)
    (trained / "experiment.yaml").write_text("name: edited\n")
    message = refused("train", config, "--model-dir", trained, "--set", "data.seed=5")
    assert "data.seed: 0 -> 5" in message
    (trained / "label_map.pbtxt").write_text("item { id: 1 name: 'edited' }")
    assert stillbox("train", config, "--model-dir", trained)[0] == 0
    assert (trained / "experiment.yaml").read_text() == (
        trained / "checkpoints/2/experiment.yaml"
    ).read_text()


def test_a_checkpoint_that_another_run_wrote_meanwhile_is_noticed(
    stillbox, trained, monkeypatch, refused
):
    start_run = loop.start_run

    def slow_start(*arguments):
        started = start_run(*arguments)
        shutil.copytree(trained / "checkpoints/2", trained / "checkpoints/3")
        return started

    monkeypatch.setattr(loop, "start_run", slow_start)
    message = refused("train", trained / "experiment.yaml", "--model-dir", trained)
    assert "another run wrote a checkpoint while this one was starting\n  fix: run this" in message
    assert not (trained / "checkpoints/4").exists()


def test_a_damaged_checkpoint_is_named_with_the_way_out(refused, stillbox, trained):
    newest = trained / "checkpoints/2"
    (newest / "params.npz").write_bytes((newest / "params.npz").read_bytes()[:1000])
    again = ["train", trained / "experiment.yaml", "--model-dir", trained]
    message = refused(*again)
    assert f"{newest}/params.npz: the newest checkpoint cannot be resumed from" in message
    assert f"fix: remove {newest} to go on from step 1" in message
    shutil.rmtree(newest)
    _, err = stillbox(*again).ended()
    assert "resuming at step 1" in err


def test_records_may_move_but_must_be_the_same(stillbox, refused, trained, scenes, tmp_path):
    moved = shutil.copytree(scenes, tmp_path / "moved")
    again = ["train", trained / "experiment.yaml", "--model-dir", trained]
    elsewhere = [
        *("--set", f"data.train.paths={moved}/train.record-*"),
        *("--set", f"data.train.label_map={moved}/label_map.pbtxt"),
    ]
    stillbox(*again, *elsewhere).ended()
    write_scenes(moved, train=9, val=1, seed=1, overwrite=True)
    assert "different data: the number of training records was 10 and is 9" in refused(
        *again, *elsewhere
    )
    text = (scenes / "label_map.pbtxt").read_text().replace("disc", "disk")
    (tmp_path / "other.pbtxt").write_text(text)
    other = [
        *("--set", f"data.train.paths={scenes}/train.record-*"),
        *("--set", f"data.train.label_map={tmp_path}/other.pbtxt"),
        *("--set", f"data.evaluation.label_map={tmp_path}/other.pbtxt"),
    ]
    message = refused(*again, *other)
    assert "the label map of the training records is another one" in message


def test_a_non_finite_loss_ends_with_3_and_the_last_checkpoint_is_sound(train, tmp_path):
    # Two steps at .002, then the largest rate there is. The loss of step 3 is still sound, and the
    # parameters that would come of it are not: they must not be kept.
    schedule = "[{step: 2, learning_rate: 3.0e+38}]"
    _, err = train(
        f"train.optimizer.schedule={{kind: manual_step, schedule: {schedule}}}",
        "train.steps=6",
        "train.checkpoint_every=1",
        evaluated=False,
    ).ended(3)
    message = err[err.index("stillbox train: step 3: the loss, its gradient or") :]
    for part in ("loss", "classification_loss", "localization_loss", "regularization_loss"):
        assert re.search(rf"\b{part} [\d.]+", message)
    assert "learning_rate 3e+38" in message
    images = re.findall(r"train\.record-00000-of-00001: record \d+ .*\(image \d+\)", message)
    assert len(images) == 4
    assert ModelDirectory.open(tmp_path / "model").latest_step() == 2
    for section in ("params", "stats", "optimizer", "ema"):
        for name, array in checkpoint(tmp_path / "model", 2, section).items():
            assert np.isfinite(array).all(), name


def test_a_full_disk_is_said_and_the_last_checkpoint_stays(train, tmp_path, monkeypatch):
    write = model_directory.write_checkpoint

    def full(folder, step, *rest):
        if step > 1:
            (folder / "params.npz").write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(folder, step, *rest)

    monkeypatch.setattr(model_directory, "write_checkpoint", full)
    _, err = train("train.checkpoint_every=1", evaluated=False).ended(2)
    assert (
        f"stillbox train: {tmp_path}/model/checkpoints: the checkpoint of step 2 cannot be "
        "written: No space left on device; it needs "
    ) in err
    # The disk of the test is not full, and its free space not to blame.
    assert re.search(
        r"it needs [\d.,]+ KiB; [\d.,]+ [GM]iB are free in \S+, of which a quota or the file "
        r"system itself withholds some\n"
        r"  fix: make room on the disk and start again; finished checkpoints: 1\n",
        err,
    )
    assert "Traceback" not in err
    assert [entry.name for entry in (tmp_path / "model/checkpoints").iterdir()] == ["1"]
    monkeypatch.undo()
    assert checkpoint(tmp_path / "model", 1)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_ends_a_run_without_end_after_a_checkpoint(
    train, tmp_path, monkeypatch, number, code
):
    send_at(monkeypatch, 3, number)
    answer = train("train.steps=0", evaluated=False)
    assert answer.code == code
    assert f"stopped by {number.name} after step 3; run again to go on" in answer.out
    assert ModelDirectory.open(tmp_path / "model").latest_step() == 3


def test_a_signal_between_two_looks_loses_no_step(train, tmp_path, monkeypatch):
    class Late(loop.MetricsGuard):
        def pop(self, *, leave=1):
            seen = super().pop(leave=leave)
            if seen and seen[-1][0] == 2:  # after the loop has decided whether to save
                os.kill(os.getpid(), signal.SIGTERM)
            return seen

    monkeypatch.setattr(loop, "MetricsGuard", Late)
    answer = train("train.steps=0", "train.checkpoint_every=100", evaluated=False)
    assert answer.code == 143
    stopped = int(re.search(r"after step (\d+)", answer.out)[1])
    assert ModelDirectory.open(tmp_path / "model").steps() == (stopped,)


def test_a_signal_in_the_last_step_changes_nothing_about_a_finished_run(train, monkeypatch):
    send_at(monkeypatch, 2)
    answer = train("train.steps=2", evaluated=False)
    assert (answer.code, answer.out.split(";")[0]) == (0, "finished at step 2")


def test_records_that_were_left_out_are_named_at_the_end(train, scenes, tmp_path):
    path = tmp_path / "half_bad.record"
    with tfrecord_writer(path) as write:
        for payload in read_records(scenes / "train.record-00000-of-00001"):
            write(payload)
        write(b"no example")
    words = [f"data.train.paths={path}", "train.steps=3"]
    _, err = train(*words, "data.bad_records=drop", evaluated=False).ended()
    assert "1 unusable record left out" in err
    assert re.search(rf"1 x .*, record left out: {path}: record 10", err)


def test_an_unreadable_record_stops_the_run_with_its_place(train, scenes, tmp_path):
    path = tmp_path / "bad.record"
    with tfrecord_writer(path) as write:
        write(read_records(scenes / "train.record-00000-of-00001")[0])
        write(b"no example")
    _, err = train(f"data.train.paths={path}", evaluated=False).ended(2)
    assert f"stillbox train: {path}: record 1" in err
    assert "set data.bad_records=drop to go on without it" in err


def test_the_end_of_the_last_epoch_is_scored(train, tmp_path):
    _, err = train("train.steps=0", "data.train.num_epochs=1").ended()
    assert re.search(r"step 3: AP 0\.\d+, .* on 6 images", err)
    assert ModelDirectory.open(tmp_path / "model").best().step == 3


def test_a_run_that_was_stopped_early_stays_stopped(train):
    settings = [
        "train.steps=40",
        "train.evaluate_every=1",
        "train.early_stopping={patience: 1, min_delta: 1.0}",
    ]
    assert train(*settings).out.startswith("stopped early: AP50 has not risen")
    out, _ = train(*settings).ended()
    assert out.startswith("stopped early at step 2 already: AP50 has not risen")


def test_a_signal_during_the_compilation_ends_the_run_and_leaves_the_folder_usable(
    train, tmp_path, monkeypatch
):
    def compile_slowly(self):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal came before")

    monkeypatch.setattr(preparing.Compilation, "result", compile_slowly)
    answer = train(evaluated=False)
    assert answer.code == 143
    assert "stopped by SIGTERM while compiling the train step; run again to go on" in answer.err
    assert ModelDirectory.open(tmp_path / "model").steps() == ()
    DirectoryLock(tmp_path / "model").release()  # it is free


def test_an_evaluation_that_a_signal_ended_is_made_up_for(train, tmp_path, monkeypatch):
    def score_slowly(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal came before")

    words = ["train.steps=2", "train.checkpoint_every=2"]
    with monkeypatch.context() as patch:
        patch.setattr(periodic, "score_dataset", score_slowly)
        answer = train(*words)
    assert answer.code == 143
    assert "stopped by SIGTERM while evaluating; run again to go on" in answer.err
    assert ModelDirectory.open(tmp_path / "model").steps() == (2,)
    again = train(*words)
    assert again.code == 0
    assert "step 2: AP " in again.err


def test_records_that_no_longer_answer_do_not_hold_a_run_that_is_to_stop(
    train, tmp_path, monkeypatch
):
    second_step, answers, iterate = threading.Event(), threading.Event(), loop.TrainLoader.iterate

    class Guard(loop.MetricsGuard):
        def push(self, step, *rest):
            super().push(step, *rest)
            if step == 2:
                second_step.set()

    def hang_after_two(*arguments):
        yield from itertools.islice(iterate(*arguments), 2)
        second_step.wait(300)
        os.kill(os.getpid(), signal.SIGTERM)
        answers.wait(300)

    monkeypatch.setattr(loop, "MetricsGuard", Guard)
    monkeypatch.setattr(loop.TrainLoader, "iterate", hang_after_two)
    monkeypatch.setattr(loader, "_LOOK_SECONDS", 0.05)
    answer = train("train.steps=0", "train.checkpoint_every=100", evaluated=False)
    answers.set()
    assert answer.code == 143
    assert "stopped by SIGTERM after step 2" in answer.out
    assert ModelDirectory.open(tmp_path / "model").steps() == (2,)


def test_a_clock_that_jumps_changes_no_speed(train, tmp_path, monkeypatch):
    now = itertools.cycle([2e9, 1e9, 3e9, 0.0])
    monkeypatch.setattr(loggers.time, "time", lambda: next(now))
    answer = train("train.steps=2", evaluated=False)
    assert answer.code == 0
    lines = read_history(tmp_path / "model" / HISTORY).training
    assert [line["step"] for line in lines] == [1, 2]
    assert all(0 < line["images_per_second"] < 1e6 for line in lines)
    assert re.search(r"step 2/2 .*  ETA 0:00:00", answer.err)


@pytest.mark.parametrize("name", ["absent.npz", "model.ckpt", "folder/", "weights.txt"])
def test_first_weights_that_are_absent_are_refused_before_anything_is_traced(
    untrained, tmp_path, monkeypatch, name
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "weights.txt").touch()
    monkeypatch.setattr(loop, "train_programs", None)
    message = untrained(f"train.fine_tune.checkpoint={tmp_path}/{name}", evaluated=False)
    assert name.rstrip("/") in message
