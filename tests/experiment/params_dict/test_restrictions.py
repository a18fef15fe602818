"""Keys that must agree (goldens I.restr_* of ops.json)."""

import pytest

from stillbox.errors import UserError
from stillbox.experiment.params_dict.merging import Entry, Params
from stillbox.experiment.params_dict.restrictions import check_restriction

PARAMS = Params({"anchor.num_scales": Entry(2, "a.yaml:3:1")})


def check(text):
    check_restriction(text, PARAMS.value, PARAMS.where)


@pytest.mark.parametrize(
    "text",
    [
        # I.restr_lt holds there too; I.restr_le is a KeyError about '= b' there.
        "anchor.num_scales < retinanet_head.num_convs",
        "anchor.num_scales <= retinanet_head.num_convs",
        "anchor.num_scales<=2",
        "anchor.num_scales >= 2",
        "retinanet_head.num_convs > anchor.num_scales",
        "anchor.num_scales == 2",
        "anchor.num_scales != 3",
        "train.input_partition_dims == None",
        "nasfpn.activation == null",
        "eval.type == 'box'",
        "eval.type == box",
        "anchor.anchor_size == 4",
    ],
)
def test_what_holds(text):
    check(text)


@pytest.mark.parametrize(
    "text",
    [
        "anchor.num_scales < 2",
        "anchor.num_scales > 2",
        "anchor.num_scales == 3",
        "anchor.num_scales != 2",
        "anchor.num_scales >= 3",
        "anchor.num_scales <= 1",
        "anchor.num_scales < eval.type",
        "eval.eval_samples > 3",
    ],
)
def test_what_does_not_hold(text):
    with pytest.raises(UserError, match="is required"):
        check(text)


def test_the_message_names_both_values_and_places():
    # I.restr_eq_fail: "Found inconsistncy between key `a ` and key ` b`".
    with pytest.raises(UserError) as error:
        check("anchor.num_scales == retinanet_head.num_convs")
    assert str(error.value) == (
        "a.yaml:3:1: anchor.num_scales is 2 (a.yaml:3:1) and retinanet_head.num_convs is 4 (the "
        "default), but anchor.num_scales == retinanet_head.num_convs is required"
    )


def test_what_is_no_restriction():
    with pytest.raises(UserError, match="is no restriction"):
        check("anchor.num_scales = 2")
    with pytest.raises(UserError, match=r"there is no key 'anchor\.num_scale'"):
        check("anchor.num_scale == 2")
