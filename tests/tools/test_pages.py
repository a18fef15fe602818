"""docs/fields.md, docs/params_dict.md and docs/pipeline_config.md are what the code does today."""

import re
from pathlib import Path

import pytest

from stillbox.experiment.params_dict import section as unused_keys
from stillbox.experiment.params_dict.keys import FINAL, KEYS, OLD
from stillbox.experiment.params_dict.reader import RENAMED, REPEATED
from stillbox.experiment.pipeline_config import section
from stillbox.experiment.pipeline_config.reader import read_pipeline_config
from stillbox.experiment.pipeline_config.section import NO_EFFECT, REFUSED, ROOT, load_schema
from stillbox.experiment.schema import Experiment
from stillbox.experiment.values import leaf_paths
from tools import params_dict, pipeline_config
from tools.effects import Effect
from tools.fields import page as fields_page

FIELDS_PAGE = Path(__file__).parents[2] / "docs" / "fields.md"


def test_the_page_of_all_fields_is_up_to_date():
    assert FIELDS_PAGE.read_text(encoding="utf-8") == fields_page(), (
        "python -m tools.fields > docs/fields.md"
    )


def test_every_field_is_listed_under_the_path_of_its_section():
    sections = {}
    for line in fields_page().splitlines():
        if line.startswith("## "):
            title = line
        elif line.startswith("| `"):
            sections.setdefault(title, set()).add(line.split("`")[1])
    for path in leaf_paths(Experiment()):
        section, _, name = path.rpartition(".")
        if name != "kind":
            assert any(
                name in names and (f"`{section}`" in title if section else "top" in title)
                for title, names in sections.items()
            ), path


PARAMS_PAGE = Path(__file__).parents[2] / "docs" / "params_dict.md"


def test_the_page_of_keys_is_what_the_reader_does_today():
    # `python -m tools.params_dict > docs/params_dict.md` mends it.
    assert PARAMS_PAGE.read_text(encoding="utf-8") == params_dict.page()


@pytest.mark.parametrize("path", KEYS)
def test_every_key_has_an_effect_a_note_or_a_refusal(path):
    effect = params_dict.effects()[path]
    assert effect.honoured or effect.ignored or effect.refused


def test_no_key_is_missing():
    text = PARAMS_PAGE.read_text(encoding="utf-8")
    sections = re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", text, re.M | re.S)
    found = {
        f"{title.strip('`')}.{key}".removeprefix("At the top.")
        for title, rows in sections
        for key in re.findall(r"^\| `(\w+)` \|", rows, re.M)
    }
    assert found == set(FINAL)
    assert set(re.findall(r"^\| `([\w.]+\.\w+)` \|", text, re.M)) == set(OLD)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("train.train_batch_size", "train.batch_size"),
        ("anchor.num_scales", "model.anchors.scales_per_octave"),
        ("eval.val_json_file", "data.evaluation.annotations"),
        ("spinenet_mbconv.se_ratio", "model.backbone.se_ratio"),
        ("nasfpn.init_drop_connect_rate", "model.neck.drop_connect_rate"),
        ("retinanet_loss.normalizer_momentum", "model.loss.normalizer_momentum"),
        ("train.checkpoint.skip_variables_regex", "train.fine_tune.skip"),
        ("resnet.dropblock.dropblock_size", "model.backbone.drop_block.block_size"),
    ],
)
def test_an_honoured_key_changes_its_field(key, expected):
    assert expected in params_dict.effects()[key].honoured


def test_keys_without_effect_change_nothing():
    for path, reason in unused_keys.NO_EFFECT.items():
        assert not params_dict.effects()[path].honoured, path
        assert reason in params_dict.effects()[path].reasons(), path


def test_the_tables_name_real_keys():
    names = {
        *unused_keys.NO_EFFECT,
        *(label.partition("=")[0] for label in unused_keys.REFUSED),
        *RENAMED.values(),
    }
    names |= {*REPEATED, *RENAMED, *(path for copies in REPEATED.values() for path in copies)}
    assert names <= set(KEYS)


PIPELINE_PAGE = Path(__file__).parents[2] / "docs" / "pipeline_config.md"


def test_the_page_is_what_the_reader_does_today():
    # `python -m tools.pipeline_config > docs/pipeline_config.md` mends it.
    assert PIPELINE_PAGE.read_text(encoding="utf-8") == pipeline_config.page()


def reachable(message, found):
    """The language as the tables have it, walked without the code that is tested."""
    if message in load_schema().messages and message not in found:
        found.add(message)
        for kind in load_schema().messages[message].fields.values():
            reachable(kind.type, found)
    return found


def test_no_field_of_the_language_is_missing():
    text = PIPELINE_PAGE.read_text(encoding="utf-8")
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
    text = PIPELINE_PAGE.read_text(encoding="utf-8")
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
    monkeypatch.delitem(section.NO_EFFECT["TrainConfig"], "sync_replicas")
    assert list(effect().refused.values()) == ["has no counterpart in stillbox"]
    monkeypatch.undo()
    pipeline_config._read.cache_clear()


@pytest.mark.parametrize("base", pipeline_config.BASES)
def test_probes_start_from_sound_files(base):
    assert read_pipeline_config(base, "p").warnings == ()
