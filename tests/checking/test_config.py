"""All findings about a config are reported in one run."""

import io
import os
import re
import sys

import pytest
from rich.console import Console

from stillbox.checking import memory_estimate
from stillbox.checking.config import ConfigCheck, check_config
from stillbox.cli.overrides import changes_of
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules import check_trainable
from stillbox.findings import Finding
from stillbox.models import anchors, build
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource
from stillbox.references import worded
from tests.experiment.sample import SAMPLE
from tests.helpers import refused
from tests.small import SMALL, small_overrides


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The function that writes the sample, changed, and checks it without its records."""
    monkeypatch.chdir(tmp_path)

    def check(*changes, overrides=(), **options):
        text = SAMPLE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / "p.config").write_text(text)
        return check_config("p.config", changes_of(overrides), **options)

    return check


def said(check, severity):
    return [(f.origin, f.what) for f in check.findings if f.severity == severity]


def text_of(check, **options):
    console = Console(file=io.StringIO(), width=100)
    console.print(check.render(**options))
    return console.file.getvalue()


def test_addresses_and_paths_stay_whole_on_a_narrow_terminal():
    address = f"https://storage.example.org/{'models/' * 20}weights.tar.gz"
    fix = f"get {address} and"
    finding = Finding("warning", "", "there are no weights", fix, origin="p.config:3:1")
    console = Console(file=io.StringIO(), width=40)
    console.print(ConfigCheck("p.config", (finding,)).render(), crop=False)
    text = console.file.getvalue()
    assert address in text
    assert "  warning 3:1: there are no weights\n    fix: get\n" in text


def test_all_broken_rules_are_reported_with_their_lines(config):
    check = config(
        ("num_layers: 6", "num_layers: 5"),
        ("unmatched_threshold: 0.4", "unmatched_threshold: 0.7"),
        ("max_detections_per_class: 20", "max_detections_per_class: 200"),
        ("height: 160", "height: 8"),
        ("weight: 2e-5", "weight: -1"),
        ("decay: 0.7", "decay: 7"),
        ("batch_size: 16", "batch_size: 0"),
    )
    # One for the backbone and one for the neck stand in the same line.
    places = {where for where, _ in said(check, "error")}
    assert places == {f"p.config:{place}" for place in (
        "5:43", "12:40", "22:9", "32:9", "64:9", "72:3", "88:7",
    )}  # fmt: skip
    assert all(finding.fix for finding in check.findings if finding.severity == "error")


def test_a_label_map_that_is_no_file_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nul").write_bytes(b"item { id: 1 name: 'a\0' }")
    for name, sentence in (("", "is a folder"), ("pipe", "is a pipe"), ("nul", "has a NUL byte")):
        settings = [f"data.train.label_map={tmp_path / name}"]
        check = check_config("demo_scenes", changes_of(settings), records="none")
        (finding,) = (finding for finding in check.findings if finding.severity == "error")
        assert sentence in finding.what
        assert "label_map" in finding.origin


def test_unreadable_configs_illegal_sizes_and_single_shards_are_found(config):
    (finding,) = config(("num_classes", "num_clases")).findings
    assert (finding.severity, finding.origin) == ("error", "p.config:4:5")
    assert finding.fix == "did you mean 'num_classes'?"
    check = check_config("ssd_mobilenet_v1_fpn_640x640", changes_of(["model.resizer.height=600"]))
    (error,) = (finding for finding in check.findings if finding.severity == "error")
    assert "the nearest sides that do are 576 and 608" in error.fix
    check = config(overrides=["data.train.paths=a.record-00000-of-00010"], records="none")
    assert any("1 of 10 shards" in sentence for _, sentence in said(check, "warning"))


def test_warnings_and_notes_of_the_reader_keep_their_places(config):
    resizer = "keep_aspect_ratio_resizer { min_dimension: 160 max_dimension: 192 }"
    check = config(("fixed_shape_resizer { height: 160 width: 192 }", resizer))
    (unpadded,) = (f for f in check.findings if "pad_to_max_dimension" in f.what)
    assert (unpadded.severity, unpadded.origin) == ("warning", "p.config:5:47")
    assert ("p.config:99:3", "TrainConfig.sync_replicas has no effect here: all devices run one "
            "synchronous program") in said(check, "note")  # fmt: skip


def test_placeholders_are_one_finding_with_all_their_places(config):
    check = config(
        ('"val.record"', '"PATH_TO_BE_CONFIGURED/val"'),
        ('"backbone.npz"', '"gs://bucket/model.ckpt"'),
        ('["train-a.record"', '["PATH_TO_BE_CONFIGURED/a"'),
    )
    checkpoint, finding = (f for f in check.findings if "=PATH" in f.fix)
    assert finding.severity == "warning"
    assert finding.origin == "p.config:103:28"
    assert "119:28 (data.evaluation.paths)" in finding.what
    assert worded(finding.fix) == "data.train.paths=PATH data.evaluation.paths=PATH"
    assert checkpoint.origin == "p.config:94:3"
    assert "train.fine_tune.checkpoint=PATH" in checkpoint.fix


def test_advice_is_given_only_where_no_rule_is_broken(config):
    sound = config(overrides=["train.optimizer.schedule=constant"])
    assert any("keeps" in sentence for _, sentence in said(sound, "warning"))
    broken = config(overrides=["train.steps=-1"])
    assert not any("keeps" in sentence for _, sentence in said(broken, "warning"))


def test_records_that_are_present_are_checked(scenes):
    sound = small_overrides(scenes, "train.freeze=[]")
    check = check_config("demo_scenes", changes_of(sound))
    notes = [sentence for _, sentence in said(check, "note")]
    assert not said(check, "error")
    assert any("10 of 10 records checked" in sentence for sentence in notes)
    assert any("6 of 6 records checked" in sentence for sentence in notes)
    unread = check_config("demo_scenes", changes_of(sound), records="none").findings
    assert not any("records checked" in finding.what for finding in unread)


def test_limits_beside_the_records_are_findings_and_one_table(scenes):
    small = small_overrides(scenes, "data.train.max_boxes=1", "train.augmentations=[]")
    check = check_config("demo_scenes", changes_of(small))
    (finding,) = (f for f in check.findings if f.path == "data.train.max_boxes")
    source = ExampleSource(
        [f"{scenes}/train.record-*"], LabelMap.from_file(scenes / "label_map.pbtxt")
    )
    counts = [len(source.example(record).boxes) for record in range(10)]
    # One box of each image is kept, where there is one.
    lost = sum(counts) - sum(map(bool, counts))
    assert finding.severity == "warning"
    assert f"of {sum(counts)} objects {lost} " in finding.what
    assert worded(finding.fix) == f"data.train.max_boxes={max(counts)}"
    assert worded(finding.origin) == "data.train.max_boxes=1"
    (row,) = check.limits.costly
    assert (row.lost, row.needed) == (lost, max(counts))
    text = text_of(check)
    assert "10 of 10 images to train on, 6 of 6 images to score on" in " ".join(text.split())
    # The remedy is in the table alone.
    assert text.count(f"data.train.max_boxes={max(counts)}") == 1
    assert check.to_dict()["limits"]["rows"][0]["path"] == "data.train.max_boxes"
    mended = check_config("demo_scenes", changes_of([*small, worded(finding.fix)]))
    assert not mended.limits.costly
    assert "harmless: " in text_of(mended)


def test_limits_of_absent_records_are_not_compared(config, scenes):
    assert config().limits.rows == ()
    unread = changes_of(small_overrides(scenes))
    assert check_config("demo_scenes", unread, records="none").limits.rows == ()


def test_records_with_classes_that_do_not_fit_are_errors(scenes):
    check = check_config("demo_scenes", changes_of(small_overrides(scenes, "model.num_classes=2")))
    errors = [sentence for _, sentence in said(check, "error")]
    assert any("goes up to id 6, the model has 2 classes" in sentence for sentence in errors)
    assert any("class id above num_classes" in sentence for sentence in errors)


def test_absent_records_are_a_note_or_an_error_with_all(config):
    (train,) = (
        sentence for where, sentence in said(config(), "note") if where == "p.config:103:28"
    )
    assert train == "not checked: train-a.record: there is no such file"
    assert any(where == "p.config:103:28" for where, _ in said(config(records="all"), "error"))


def test_no_device_is_started(tmp_path):
    import subprocess

    code = (
        "from stillbox.cli.main import main; "
        "code = main(['check', 'demo_scenes']); "
        "from jax._src import xla_bridge; "
        "assert code == 0 and not xla_bridge.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True)


def test_text_is_short_and_json_has_all_findings(config):
    lines = text_of(config(("batch_size: 16", "batch_size: 0"))).splitlines()
    assert lines[0] == "p.config"
    assert lines[1].strip() == "error 72:3: train.batch_size is 0"
    assert lines[2].strip() == "fix: give a value of at least 1"
    assert lines[-1].startswith("1 error, ")
    check = config()
    assert check.count("note") > 4
    hidden = check.count("note") - 4
    assert f"... and {hidden} more notes; notes= shows all" in worded(text_of(check))
    assert text_of(check, all_notes=True).count("note ") == check.count("note")
    plain = config().to_dict()
    assert plain["source"] == "p.config"
    assert plain["errors"] == 0
    assert plain["notes"] == sum(f["severity"] == "note" for f in plain["findings"])
    assert plain["limits"] == {"read": [], "rows": []}
    assert plain["findings"][0].keys() == {"severity", "path", "origin", "what", "fix"}


def test_all_refusals_are_numbered_with_broken_rules_of_other_sections(config):
    check = config(
        ("num_classes: 3", "num_clases: 3"),
        ("RELU_6", "RELU6"),
        ("  num_steps: 400", "  num_steps: 400 batch_size: 0"),
    )
    assert [(f.severity, f.origin) for f in check.findings] == [
        ("error", "p.config:4:5"),
        ("error", "p.config:11:21"),
        ("error", "p.config:73:18"),
    ]
    assert check.to_dict()["errors"] == 3
    assert all(finding.fix for finding in check.findings)
    text = text_of(check)
    for number, place in enumerate(("4:5", "11:21", "73:18"), start=1):
        assert f"{number}. error {place}: " in text


def test_padding_beyond_any_memory_is_traced_at_a_small_size():
    overrides = [*SMALL, "model.pad_to_multiple=16384", "data.train.paths=[]"]
    checked = check_config("ssd_mobilenet_v1_300x300", changes_of(overrides), records="none")
    # The model is traced at 1,024 and taken 16^2 times: 4 images of 16,384^2 pixels.
    assert any(
        re.search(r"at least 436\.\d\d GiB of memory \(activations", finding.what)
        for finding in checked.findings
    )


def test_a_model_of_too_many_layers_or_anchors_is_refused(monkeypatch):
    for module, limit, sentence in (
        (build, "_MOST_ARRAYS", "arrays of parameters, and at most 9 are possible"),
        (anchors, "_MOST_ANCHORS", "anchors, and at most 9 are possible"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, 9)
            memory_estimate._traced.cache_clear()
            overrides = [*SMALL, "train.freeze=[backbone]"]
            checked = check_config(
                "ssd_mobilenet_v1_300x300", changes_of(overrides), records="none"
            )
        errors = [finding for finding in checked.findings if finding.severity == "error"]
        assert len(errors) == 1
        assert sentence in errors[0].what


def test_anchors_are_counted_before_they_are_made():
    many = schema.GridAnchors(scales=(1.0,) * 64, aspect_ratios=(1.0,) * 64)
    anchors.check_number(many, ((40, 40),), where="model.anchors")
    with refused("model.anchors", "16,777,216"):
        anchors.check_number(many, ((64, 64),), where="model.anchors")


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (["model.proposals.max_proposals=50"], "model.boxes.sample_size"),
        (["model.boxes.sample_size=301"], "model.boxes.sample_size"),
    ],
)
def test_what_no_data_mends_is_an_error_as_of_training(overrides, path):
    check = check_config("faster_rcnn_resnet50_v1_640x640", changes_of(overrides), records="none")
    assert [finding.path for finding in check.findings if finding.severity == "error"] == [path]
    experiment = resolve("faster_rcnn_resnet50_v1_640x640", changes_of(overrides))
    with refused("data.train.paths"):
        check_trainable(experiment.experiment, {})


def test_missing_data_is_a_warning():
    check = check_config("faster_rcnn_resnet50_v1_640x640", records="none")
    assert not check.count("error")
    missing = {
        finding.path: finding.severity
        for finding in check.findings
        if finding.path.startswith("data.")
    }
    assert missing["data.train.paths"] == "warning"
