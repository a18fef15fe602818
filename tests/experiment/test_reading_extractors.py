"""Feature extractors and predictors of a pipeline.config: every type, every quirk."""

import dataclasses
from functools import partial

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.extractors import EXTRACTORS, read_extractor
from stillbox.experiment.pipeline_config.ssd import read_head
from tests.experiment.sample import read_section
from tests.helpers import refused

HYPERPARAMS = """
conv_hyperparams {
  activation: RELU
  regularizer { l2_regularizer { weight: 3e-5 } }
  initializer { random_normal_initializer { stddev: 0.02 } }
  batch_norm { decay: 0.9 epsilon: 0.01 }
}
"""
CONV = schema.ConvHyperparams(
    activation="relu",
    regularizer=schema.L2(weight=3e-5),
    initializer=schema.RandomNormal(stddev=0.02),
    batch_norm=schema.BatchNorm(decay=0.9, epsilon=0.01, statistics="per_replica"),
)
OVERRIDE = "override_base_feature_extractor_hyperparams: true"
BARE = HYPERPARAMS.replace("batch_norm { decay: 0.9 epsilon: 0.01 }", "")


def logged(kind, more="", hyperparams=HYPERPARAMS):
    text = f'type: "{kind}"\n{hyperparams}\n{more}'
    return read_section(lambda section, _: read_extractor(section), "SsdFeatureExtractor", text)


def extractor(kind, more="", hyperparams=HYPERPARAMS):
    return logged(kind, more, hyperparams)[0]


def head(text, *, keras=False):
    return read_section(partial(read_head, keras=keras, code_size=4), "BoxPredictor", text)


@pytest.mark.parametrize("kind", EXTRACTORS)
def test_every_type_reads_and_taps_layers_of_its_backbone(kind):
    read = extractor(kind, "" if "efficientnet" in kind else OVERRIDE)
    taps = read.neck.taps_of(read.backbone)
    assert set(taps) <= set(read.backbone.layers)
    assert read.keras == kind.endswith("_keras")
    assert isinstance(read.backbone, schema.ResNetV1) == ("resnet" in kind)
    centred = read.pixels.std == (1.0, 1.0, 1.0)
    assert centred == ("resnet" in kind)


@pytest.mark.parametrize(
    ("kind", "backbone", "neck"),
    [
        ("ssd_mobilenet_v1", schema.MobileNetV1, schema.SsdExtraLayers),
        ("ssd_mobilenet_v1_ppn", schema.MobileNetV1, schema.Ppn),
        ("ssd_mobilenet_v2_keras", schema.MobileNetV2, schema.SsdExtraLayers),
        ("ssd_mobilenet_v2_fpn_keras", schema.MobileNetV2, schema.Fpn),
        ("ssd_inception_v2", schema.InceptionV2, schema.SsdExtraLayers),
        ("ssd_mobilenet_v3_large", schema.MobileNetV3Large, schema.SsdExtraLayers),
        ("ssd_mobilenet_v3_small", schema.MobileNetV3Small, schema.SsdExtraLayers),
        ("ssd_mobilenet_edgetpu", schema.MobileNetEdgeTpu, schema.SsdExtraLayers),
        ("ssd_mobiledet_cpu", schema.MobileDetCpu, schema.SsdExtraLayers),
        ("ssd_mobiledet_gpu", schema.MobileDetGpu, schema.SsdExtraLayers),
        ("ssd_mobiledet_dsp", schema.MobileDetDsp, schema.SsdExtraLayers),
        ("ssd_mobiledet_edgetpu", schema.MobileDetEdgeTpu, schema.SsdExtraLayers),
        ("ssd_mobilenet_v2_mnasfpn", schema.MobileNetV2, schema.MnasFpn),
        ("ssd_resnet101_v1_fpn", schema.ResNetV1, schema.Fpn),
        ("ssd_resnet152_v1_ppn", schema.ResNetV1, schema.Ppn),
    ],
)
def test_a_type_names_backbone_and_neck(kind, backbone, neck):
    read = extractor(kind, OVERRIDE)
    assert type(read.backbone) is backbone
    assert type(read.neck) is neck


def test_all_of_inception_v2_has_the_hyperparameters_of_the_config():
    more = "depth_multiplier: 0.5 min_depth: 8 use_explicit_padding: true use_depthwise: true"
    read = extractor("ssd_inception_v2", f"{OVERRIDE} {more}")
    assert read.backbone == schema.InceptionV2(depth_multiplier=0.5, min_depth=8, conv=CONV)
    # The rest concerns the extra layers alone.
    assert read.neck == schema.SsdExtraLayers(
        taps=("mixed_4c", "mixed_5c"),
        depth_multiplier=0.5,
        min_depth=8,
        depthwise=True,
        explicit_padding=True,
        conv=CONV,
    )
    # Without batch norm in the config there is none: nothing else brings any.
    assert extractor("ssd_inception_v2", OVERRIDE, BARE).backbone.conv.batch_norm is None


def test_inception_v3_has_three_taps_and_three_extra_maps():
    read = extractor("ssd_inception_v3", f"{OVERRIDE} depth_multiplier: 0.5 min_depth: 8")
    assert read.backbone == schema.InceptionV3(depth_multiplier=0.5, min_depth=8, conv=CONV)
    assert read.neck.taps == ("mixed_5d", "mixed_6e", "mixed_7c")
    assert read.neck.extra_depths == (512, 256, 128)
    fewer = extractor("ssd_inception_v3", f"{OVERRIDE} num_layers: 2")
    assert (fewer.neck.taps, fewer.neck.extra_depths) == (("mixed_5d", "mixed_6e"), ())
    # The original builds the whole network.
    assert fewer.backbone.last_layer == "mixed_7c"


def test_resnets_have_the_depth_of_their_name_and_inception_needs_the_override():
    assert extractor("ssd_resnet152_v1_fpn_keras").backbone.depth == 152
    read = extractor("ssd_resnet101_v1_ppn")
    assert read.neck == schema.Ppn(tap="block_3", depth=1024, conv=CONV)
    # The original builds block 4 too, though nothing reads it.
    assert read.backbone.last_layer == "block_4"
    with refused("p:1:1"):
        extractor("ssd_inception_v2")


@pytest.mark.parametrize(
    ("kind", "hyperparams"),
    [
        # slim leaves depthwise kernels of v2 alone, and v1 does not.
        ("ssd_mobilenet_v1", ("relu6", 4e-5, 0.9997, 0.001, True)),
        ("ssd_mobilenet_v2", ("relu6", 4e-5, 0.9997, 0.001, False)),
        ("ssd_mobilenet_v3_large", ("hard_swish", 4e-5, 0.9997, 0.001, False)),
        ("ssd_mobilenet_edgetpu", ("relu", 4e-5, 0.9997, 0.001, False)),
        ("ssd_mobiledet_cpu", ("hard_swish", 4e-5, 0.99, 0.01, True)),
        ("ssd_mobiledet_gpu", ("relu6", 4e-5, 0.99, 0.01, True)),
        ("ssd_mobilenet_v2_mnasfpn", ("relu6", 4e-5, 0.99, 0.01, True)),
        ("ssd_resnet50_v1_fpn", ("relu", 1e-4, 0.997, 1e-5, True)),
    ],
)
def test_without_the_override_a_base_keeps_what_slim_gives_it(kind, hyperparams):
    conv = extractor(kind).backbone.conv
    norm = conv.batch_norm
    assert norm.scale
    assert norm.center
    assert hyperparams == (
        conv.activation,
        conv.regularizer.weight,
        norm.decay,
        norm.epsilon,
        conv.regularize_depthwise,
    )


def test_the_override_reaches_mobilenets():
    assert extractor("ssd_mobilenet_v1", OVERRIDE).backbone.conv == CONV
    conv = extractor("ssd_mobilenet_v2", OVERRIDE).backbone.conv
    norm = dataclasses.replace(CONV.batch_norm, scale=True)
    assert conv == dataclasses.replace(CONV, activation="relu6", batch_norm=norm)
    assert extractor("ssd_mobilenet_v2_keras", OVERRIDE).backbone.conv == CONV
    conv = extractor("ssd_mobilenet_v1", OVERRIDE, BARE).backbone.conv
    norm = schema.BatchNorm(decay=0.9997, epsilon=0.001, scale=True, statistics="per_replica")
    assert conv.batch_norm == norm
    # Keras builds an identity in its place.
    for kind in ("ssd_mobilenet_v1_keras", "ssd_mobilenet_v2_keras"):
        assert extractor(kind, OVERRIDE, BARE).backbone.conv.batch_norm is None


def test_the_embedded_extractor_has_five_maps_and_a_small_kernel():
    read = extractor("embedded_ssd_mobilenet_v1", "num_layers: 4 depth_multiplier: 0.125")
    assert read.backbone.depth_multiplier == 0.125
    assert read.neck == schema.SsdExtraLayers(
        extra_depths=(512, 256, 256),
        extra_kernel_sizes=(3, 3, 2),
        depth_multiplier=0.125,
        conv=CONV,
    )


def test_efficientnet_has_its_own_hyperparameters_and_the_pyramid_those_of_the_config():
    read = extractor("ssd_efficientnet-b3_bifpn_keras")
    size = schema.EFFICIENTNET_SIZES["b3"]
    norm = dataclasses.replace(size.conv.batch_norm, statistics="per_replica")
    conv = dataclasses.replace(size.conv, batch_norm=norm)
    assert read.backbone == dataclasses.replace(size, conv=conv, last_layer="stack_6_block_1")
    assert read.neck == schema.BiFpn(depth=160, num_repeats=6, conv=CONV)
    # Sums of three maps, of the taps that the original has in all sizes.
    assert read.neck.taps_of(read.backbone) == (
        "stack_2_block_1",
        "stack_4_block_2",
        "stack_6_block_0",
    )


def test_every_field_of_the_bifpn_reads():
    fields = "min_level: 4 max_level: 6 num_iterations: 2 num_filters: 24 combine_method: 'sum'"
    read = extractor("ssd_efficientnet-b0_bifpn_keras", f"bifpn {{ {fields} }}").neck
    assert read == schema.BiFpn(
        min_level=4, max_level=6, num_repeats=2, depth=24, combine="sum", conv=CONV
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OVERRIDE, "an EfficientNet has no override_base_feature_extractor_hyperparams"),
        ("bifpn { num_filters: 8 }", "num_iterations = 0: a BiFPN without it"),
        (
            "bifpn { num_iterations: 1 num_filters: 8 combine_method: 'attention' }",
            "an axis of length 1",
        ),
    ],
)
def test_what_an_efficientdet_has_not_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        extractor("ssd_efficientnet-b0_bifpn_keras", text)


@pytest.mark.parametrize(
    ("kind", "activation"),
    [("ssd_mobilenet_v3_small", "hard_swish"), ("ssd_mobilenet_edgetpu", "relu")],
)
def test_mobilenet_v3_keeps_its_activations_and_scale_under_the_override(kind, activation):
    conv = extractor(kind, OVERRIDE).backbone.conv
    norm = dataclasses.replace(CONV.batch_norm, scale=True)
    assert conv == dataclasses.replace(CONV, activation=activation, batch_norm=norm)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("ssd_mobilenet_v3_large", "maps grow from block to block"),
        ("ssd_mobiledet_dsp", "MobileDet has none"),
    ],
)
def test_explicit_padding_is_refused_where_the_original_has_none(kind, reason):
    with pytest.raises(UserError, match=reason):
        extractor(kind, "use_explicit_padding: true")


def test_a_mobiledet_keeps_its_hyperparameters_under_the_override_with_a_note():
    read, log = logged("ssd_mobiledet_cpu", f"{OVERRIDE} depth_multiplier: 0.5 min_depth: 40")
    assert read.backbone == dataclasses.replace(
        extractor("ssd_mobiledet_cpu").backbone, depth_multiplier=0.5
    )
    # No least depth either, but for the extra layers.
    assert (read.neck.min_depth, read.neck.conv) == (40, CONV)
    assert "has no effect on a MobileDet" in log.notes[0]


def test_mnasfpn_keeps_its_hyperparameters_with_notes():
    fpn = "fpn { min_level: 3 max_level: 6 additional_layer_depth: 64 }"
    widths = "depth_multiplier: 0.5 min_depth: 8 use_explicit_padding: true"
    read, log = logged("ssd_mobilenet_v2_mnasfpn", f"{OVERRIDE} {fpn} {widths}")
    assert [note.split(" has")[0].split(".")[1] for note in log.notes] == [
        "conv_hyperparams",
        "override_base_feature_extractor_hyperparams",
    ]
    # What the original sets in its training scopes.
    norm = schema.BatchNorm(decay=0.99, epsilon=0.01, scale=True, statistics="per_replica")
    he = schema.VarianceScaling(factor=2.0, mode="fan_in", exact_cut=True)
    conv = schema.ConvHyperparams(activation="relu6", initializer=he, batch_norm=norm)
    filters = schema.TruncatedNormal(stddev=0.536)
    fields = {"depth_multiplier": 0.5, "min_depth": 8, "explicit_padding": True}
    assert read.backbone == schema.MobileNetV2(
        last_depth=0,
        depthwise_initializer=filters,
        conv=dataclasses.replace(conv, regularizer=schema.L2(weight=4e-5)),
        **fields,
    )
    assert read.neck == schema.MnasFpn(
        depth=64,
        separable_initializer=filters,
        conv=dataclasses.replace(conv, regularizer=schema.L2(weight=1e-4)),
        **fields,
    )
    # The coarsest tap is the last block, without a convolution behind it.
    assert read.neck.taps_of(read.backbone) == ("block_5", "block_12", "block_16")
    # Without the message it has levels and depth of its own.
    assert extractor("ssd_mobilenet_v2_mnasfpn").neck.depth == 48


def test_a_resnet_keeps_its_batch_norm_under_the_override():
    conv = extractor("ssd_resnet50_v1_fpn", OVERRIDE).backbone.conv
    norm = schema.BatchNorm(decay=0.997, epsilon=1e-5, scale=True, statistics="per_replica")
    assert conv == dataclasses.replace(CONV, batch_norm=norm)


def test_a_resnet_of_the_second_generation_is_overridden_as_a_whole():
    given = HYPERPARAMS.replace("RELU", "RELU_6")
    read = extractor("ssd_resnet50_v1_fpn_keras", OVERRIDE, given).backbone
    assert read.conv == dataclasses.replace(CONV, activation="relu6", regularize_depthwise=False)
    assert read.unit_activation == "relu6"
    base = extractor("ssd_resnet50_v1_fpn_keras").backbone
    slim = extractor("ssd_resnet50_v1_fpn").backbone
    assert base.unit_activation == slim.unit_activation == "relu"
    # Keras adds 1e-4 times the sum of squares, slim half as much.
    assert base.conv == dataclasses.replace(
        slim.conv,
        regularizer=schema.L2(weight=2e-4),
        initializer=schema.VarianceScaling(factor=1.0, exact_cut=True),
    )
    bare, log = logged("ssd_resnet50_v1_fpn_keras", OVERRIDE, BARE)
    assert bare.backbone.conv.batch_norm is None
    assert "neither normalisation nor biases" in log.notes[0]


def test_only_the_second_generation_hands_the_smoothed_map_down():
    assert extractor("ssd_mobilenet_v1_fpn").neck.top_down == "sum"
    assert extractor("ssd_mobilenet_v1_fpn_keras").neck.top_down == "smoothed"


def test_a_depthwise_pyramid_thins_the_end_of_the_backbone():
    assert extractor("ssd_mobilenet_v1_fpn").backbone.last_depths == (1024, 1024)
    read = extractor("ssd_mobilenet_v1_fpn", "use_depthwise: true")
    assert read.backbone.last_depths == (512, 256)
    assert read.neck.depthwise
    assert extractor("ssd_mobilenet_v2_fpn", "use_depthwise: true").backbone.last_depth == 256
    # The second generation defines a thinner v2, and builds the whole one.
    read = extractor("ssd_mobilenet_v2_fpn_keras", "use_depthwise: true")
    assert (read.backbone.last_depth, read.neck.depthwise) == (1280, True)
    # Plain SSD keeps it whole.
    plain = extractor("ssd_mobilenet_v2", "use_depthwise: true")
    assert (plain.backbone.last_depth, plain.neck.depthwise) == (1280, True)


def test_the_second_generation_has_other_widths():
    """Widths themselves: tests/checkpoints/test_object_names.py."""
    half = "depth_multiplier: 0.5 min_depth: 4"
    read = extractor("ssd_mobilenet_v1_keras", half).backbone
    assert (read.inner_multiplier, read.last_depths) == (0.5, (512, 512))
    read = extractor("ssd_mobilenet_v1_fpn_keras", half + " use_depthwise: true").backbone
    assert (read.inner_multiplier, read.last_depths) == (0.5, (512, 256))
    read = extractor("ssd_mobilenet_v2_keras", half).backbone
    assert (read.channels, read.min_depth) == ("keras", 4)
    fpn = extractor("ssd_mobilenet_v2_fpn_keras", half + " use_depthwise: true").backbone
    assert (fpn.channels, fpn.last_depth) == ("keras", 1280)
    assert extractor("ssd_mobilenet_v2", half).backbone.channels == "slim"
    assert extractor("ssd_mobilenet_v2_keras", "min_depth: 12").backbone.min_depth == 12
    first = extractor("ssd_mobilenet_v1", half).backbone
    assert (first.inner_multiplier, first.last_depths) == (1.0, (1024, 1024))


def test_levels_and_depth_of_a_pyramid_are_read():
    fpn = "fpn { min_level: 4 max_level: 6 additional_layer_depth: 64 } depth_multiplier: 0.5"
    neck = extractor("ssd_mobilenet_v1_fpn", fpn + " use_explicit_padding: true").neck
    assert neck == schema.Fpn(
        min_level=4, max_level=6, depth=64, depth_multiplier=0.5, explicit_padding=True, conv=CONV
    )
    # No multiplier touches a ResNet, nor its pyramid; a least depth touches the pyramid.
    neck = extractor("ssd_resnet50_v1_fpn", "min_depth: 32").neck
    assert neck == schema.Fpn(min_depth=32, conv=CONV)


@pytest.mark.parametrize("kind", ["ssd_resnet50_v1_fpn", "ssd_resnet50_v1_fpn_keras"])
def test_the_pyramid_of_a_resnet_has_full_kernels_with_a_note(kind):
    read, log = logged(kind, "use_depthwise: true")
    assert read == extractor(kind)
    assert "use_depthwise has no effect here: the original" in log.notes[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("depth_multiplier: 0.5", "a ResNet has no depth_multiplier"),
        ("use_explicit_padding: true", "a ResNet has no use_explicit_padding"),
        ("min_depth: 65", "min_depth = 65: the original then widens the first layers"),
    ],
)
def test_what_a_resnet_has_not_is_refused_with_its_line(more, message):
    with pytest.raises(UserError, match=message) as caught:
        extractor("ssd_resnet50_v1_fpn", more)
    assert caught.value.where.startswith("p:10:")


def test_depthwise_kernels_are_penalized_as_each_generation_does():
    for kind, unset in (("ssd_mobilenet_v1", True), ("ssd_mobilenet_v1_keras", False)):
        assert extractor(kind).neck.conv.regularize_depthwise == unset
        for wanted in (True, False):
            given = HYPERPARAMS.replace(
                "activation", f"regularize_depthwise: {str(wanted).lower()}\n activation"
            )
            assert extractor(kind, "", given).neck.conv.regularize_depthwise == wanted


def test_synchronised_batch_norm_sees_the_whole_batch_and_plain_one_a_replica():
    synchronised = HYPERPARAMS.replace("batch_norm", "sync_batch_norm")
    plain = extractor("ssd_mobilenet_v1").neck.conv.batch_norm
    assert plain.statistics == "per_replica"
    norm = extractor("ssd_mobilenet_v1", "", synchronised).neck.conv.batch_norm
    assert norm == dataclasses.replace(plain, statistics="global")


def test_an_overridden_base_network_has_the_configured_kind_of_batch_norm():
    synchronised = HYPERPARAMS.replace("batch_norm", "sync_batch_norm")
    for kind in ("ssd_mobilenet_v1", "ssd_resnet50_v1_fpn"):
        for fields, given, statistics in (
            ("", synchronised, "per_replica"),
            (OVERRIDE, HYPERPARAMS, "per_replica"),
            (OVERRIDE, synchronised, "global"),
        ):
            norm = extractor(kind, fields, given).backbone.conv.batch_norm
            assert norm.statistics == statistics


WEIGHT_SHARED = (
    "weight_shared_convolutional_box_predictor { depth: 96 num_layers_before_predictor: 2 "
    "kernel_size: 1 share_prediction_tower: true use_depthwise: true use_dropout: true "
    "dropout_keep_probability: 0.6 class_prediction_bias_init: -2.0 %s }"
)


def test_every_field_of_the_weight_shared_predictor_reads():
    read, log = head(WEIGHT_SHARED % HYPERPARAMS, keras=True)
    assert read == schema.WeightSharedHead(
        depth=96,
        layers_before=2,
        kernel_size=1,
        share_tower=True,
        depthwise=True,
        dropout=True,
        dropout_keep_probability=0.6,
        class_bias_init=-2.0,
        pointwise_defaults=True,
        predictor_defaults=True,
        conv=CONV,
    )
    assert log.notes == []
    asked = "apply_conv_hyperparams_to_heads: true apply_conv_hyperparams_pointwise: true "
    everywhere, _ = head(WEIGHT_SHARED % (asked + HYPERPARAMS), keras=True)
    assert everywhere == dataclasses.replace(
        read, pointwise_defaults=False, predictor_defaults=False
    )


def test_the_first_generation_has_relu6_in_its_towers_with_a_note():
    read, log = head(WEIGHT_SHARED % HYPERPARAMS)
    assert read.conv == dataclasses.replace(CONV, activation="relu6")
    assert "relu6 in the towers whatever is configured" in log.notes[0]


def test_the_first_generation_ignores_the_bias_of_depthwise_class_heads_with_a_note():
    text = (
        "convolutional_box_predictor { use_depthwise: true use_dropout: false kernel_size: 3 "
        f"class_prediction_bias_init: -4.6 {HYPERPARAMS} }}"
    )
    read, log = head(text)
    assert read.class_bias_init == 0
    assert "ignores class_prediction_bias_init" in log.notes[0]
    assert head(text, keras=True)[0].class_bias_init == pytest.approx(-4.6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rfcn_box_predictor {}", "rfcn_box_predictor: R-FCN is not supported"),
        (WEIGHT_SHARED % "apply_conv_hyperparams_to_heads: true", "second generation"),
        ("convolutional_box_predictor { box_code_size: 7 }", "7, but the box coder writes a box a"),
        ("convolutional_box_predictor { apply_sigmoid_to_scores: true }", "score_converter"),
    ],
)
def test_what_predictors_have_not_is_refused_by_name(text, message):
    if "conv_hyperparams" not in text:
        text = text.replace("{", "{ " + HYPERPARAMS, 1)
    text = text.replace("hyperparams_to_heads: true", "hyperparams_to_heads: true " + HYPERPARAMS)
    with pytest.raises(UserError, match=message):
        head(text)
