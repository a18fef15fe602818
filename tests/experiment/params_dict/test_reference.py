"""docs/params_dict.md says of every key what the reader does with it."""

import re
from pathlib import Path

import pytest

from stillbox.experiment.params_dict.dialects import RENAMED, REPEATED
from stillbox.experiment.params_dict.keys import FINAL, KEYS, OLD
from stillbox.experiment.params_dict.no_effect import NO_EFFECT, REFUSED
from stillbox.experiment.params_dict.probing import fates
from stillbox.experiment.params_dict.reference import params_reference

PAGE = Path(__file__).parents[3] / "docs" / "params_dict.md"


def test_the_page_is_what_the_reader_does_today():
    # `python -m stillbox.experiment.params_dict.reference > docs/params_dict.md` mends it.
    assert PAGE.read_text(encoding="utf-8") == params_reference()


@pytest.mark.parametrize("path", KEYS)
def test_nothing_that_is_given_goes_unheard(path):
    fate = fates()[path]
    assert fate.honoured or fate.ignored or fate.refused


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
def test_what_is_honoured_is_found_where_it_went(key, expected):
    assert expected in fates()[key].honoured


def test_what_is_listed_without_effect_has_none():
    for path, reason in NO_EFFECT.items():
        assert not fates()[path].honoured, path
        assert any(said.endswith(f"here: {reason}") for said in fates()[path].ignored), path


def test_the_tables_name_real_keys():
    names = {*NO_EFFECT, *(label.partition("=")[0] for label in REFUSED), *RENAMED.values()}
    names |= {*REPEATED, *RENAMED, *(path for copies in REPEATED.values() for path in copies)}
    assert names <= set(KEYS)
