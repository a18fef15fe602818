"""docs/params_dict.md has the effect of every key."""

import re
from pathlib import Path

import pytest

from stillbox.experiment.params_dict import no_effect as unused_keys
from stillbox.experiment.params_dict.keys import FINAL, KEYS, OLD
from stillbox.experiment.params_dict.old_keys import RENAMED, REPEATED
from tools import params_dict

PAGE = Path(__file__).parents[2] / "docs" / "params_dict.md"


def test_the_page_is_what_the_reader_does_today():
    # `python -m tools.params_dict > docs/params_dict.md` mends it.
    assert PAGE.read_text(encoding="utf-8") == params_dict.page()


@pytest.mark.parametrize("path", KEYS)
def test_every_key_has_an_effect_a_note_or_a_refusal(path):
    effect = params_dict.effects()[path]
    assert effect.honoured or effect.ignored or effect.refused


def test_no_key_is_missing():
    text = PAGE.read_text(encoding="utf-8")
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
def test_an_honoured_name_changes_its_field(key, expected):
    assert expected in params_dict.effects()[key].honoured


def test_fields_without_effect_change_nothing():
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
