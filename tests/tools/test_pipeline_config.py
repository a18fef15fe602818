"""docs/pipeline_config.md has the effect of every field."""

import re
from pathlib import Path

import pytest

from stillbox.experiment.pipeline_config import no_effect
from stillbox.experiment.pipeline_config.no_effect import NO_EFFECT, REFUSED
from stillbox.experiment.pipeline_config.reader import read_pipeline_config
from stillbox.experiment.pipeline_config.section import ROOT, load_schema
from tools import pipeline_config
from tools.effects import Effect

PAGE = Path(__file__).parents[2] / "docs" / "pipeline_config.md"


def test_the_page_is_what_the_reader_does_today():
    # `python -m tools.pipeline_config > docs/pipeline_config.md` mends it.
    assert PAGE.read_text(encoding="utf-8") == pipeline_config.page()


def reachable(message, found):
    """The language as the tables have it, walked without the code that is tested."""
    if message in load_schema().messages and message not in found:
        found.add(message)
        for kind in load_schema().messages[message].fields.values():
            reachable(kind.type, found)
    return found


def test_no_field_of_the_language_is_missing():
    text = PAGE.read_text(encoding="utf-8")
    parts = text.partition("## Messages that are not read")
    sections = {
        title: set(re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE))
        for title, rows in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", parts[0], re.M | re.S)
    }
    unread = dict(re.findall(r"^- `([\w.]+)` \(\d+ fields?\), through `(\S+)`$", parts[2], re.M))
    for name in reachable(ROOT, set()):
        if name in sections:
            assert sections[name] == set(load_schema().messages[name].fields), name
        else:
            owner, _, field = unread[name].rpartition(".")
            assert load_schema().messages[owner].fields[field].type == name
    assert not sections.keys() & unread.keys()


def test_messages_of_other_detectors_have_a_line_each():
    text = PAGE.read_text(encoding="utf-8")
    assert re.search(
        r"^- `Context` \(\d+ fields\), through `FasterRcnn.context_config`$", text, re.M
    )
    assert "| `center_net` | message | refused |" in text


@pytest.mark.parametrize(
    ("message", "field", "expected"),
    [
        ("Ssd", "num_classes", "model.num_classes"),
        ("ArgMaxMatcher", "matched_threshold", "model.matcher.matched_threshold"),
        ("RandomCropImage", "min_area", "train.augmentations.0.min_area"),
        ("FeaturePyramidNetworks", "min_level", "model.neck.min_level"),
        ("FasterRcnn", "first_stage_atrous_rate", "model.proposals.dilation"),
        ("MaskRCNNBoxPredictor", "share_box_across_classes", "model.boxes.share_boxes"),
        ("GridAnchorGenerator", "scales", "model.proposals.anchors.scales"),
        ("Optimizer", "moving_average_decay", "train.ema_decay"),
        ("InputReader", "max_number_of_boxes", "data.train.max_boxes"),
        ("EvalConfig", "use_moving_averages", "evaluation.use_ema"),
    ],
)
def test_an_honoured_name_changes_its_field(message, field, expected):
    assert expected in pipeline_config.effects()[message][field].honoured


def test_fields_without_effect_change_nothing():
    for message, fields in NO_EFFECT.items():
        for name, reason in fields.items():
            effect = pipeline_config.effects()[message][name]
            assert not effect.honoured, (message, name)
            assert reason in effect.reasons(), (message, name)


def test_refused_fields_are_refused_for_the_listed_reason():
    for label, reason in REFUSED.items():
        message, _, field = label.rpartition(".")
        assert reason in pipeline_config.effects()[message][field].refused.values(), label


def test_a_field_that_is_no_longer_read_shows(monkeypatch):
    def effect():
        pipeline_config._read.cache_clear()
        kind = load_schema().messages["TrainConfig"].fields["sync_replicas"]
        found = Effect()
        pipeline_config.probe(found, pipeline_config.BASES[0], ("train_config",), kind)
        return found

    assert effect().ignored
    monkeypatch.delitem(no_effect.NO_EFFECT["TrainConfig"], "sync_replicas")
    assert list(effect().refused.values()) == ["has no counterpart in stillbox"]
    monkeypatch.undo()
    pipeline_config._read.cache_clear()


@pytest.mark.parametrize("base", pipeline_config.BASES)
def test_probes_start_from_sound_files(base):
    assert read_pipeline_config(base, "p").warnings == ()
