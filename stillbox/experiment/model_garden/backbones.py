"""`task.model.backbone` (`official/vision/modeling/backbones`)."""

from dataclasses import replace
from typing import Any

from stillbox.experiment import schema
from stillbox.experiment.model_garden.section import MODEL, GardenSection, frozen_norm, read_conv
from stillbox.experiment.params_dict.section import VARIANCE_SCALING
from stillbox.experiment.schema.searched_backbones import SPINENET_MBCONV_SIZES, SPINENET_SIZES

_BACKBONE = "model.backbone"
PYRAMIDS = ("spinenet", "spinenet_mobile")
"""Backbones that make all levels themselves."""
_BACKBONES = ("resnet", *PYRAMIDS, "mobilenet", "mobiledet")
_DEPTHS = (10, 18, 34, 50, 101, 152, 200)
# Other blocks of ResNet-RS.
_PLAIN = {
    "depth_multiplier": 1.0,
    "stem_type": "v0",
    "se_ratio": 0.0,
    "resnetd_shortcut": False,
    "replace_stem_max_pool": False,
}
# The original has another block, of level 2, that no detector reads.
_UNREAD_BLOCK = 15 / 16


def read_backbone(root: GardenSection) -> schema.Backbone:
    """Reads the backbone that `task.model.backbone` chooses."""
    section = root.child(f"{MODEL}.backbone")
    kind = section.choose("type", _BACKBONES, f"{_BACKBONE}.kind")
    conv = read_conv(root, _BACKBONE)
    frozen = root.value("task.freeze_backbone", f"{_BACKBONE}.conv.batch_norm.train")
    own = section.child(kind)
    if kind == "resnet":
        frozen |= not own.value("bn_trainable", f"{_BACKBONE}.conv.batch_norm.train")
    conv = frozen_norm(conv) if frozen else conv
    if kind == "mobilenet":
        return _read_mobilenet(own, conv)
    if kind == "mobiledet":
        return _read_mobiledet(own, conv)
    common: dict[str, Any] = {
        "conv": conv,
        "explicit_padding": False,
        "drop_connect_rate": own.value(
            "stochastic_depth_drop_rate", f"{_BACKBONE}.drop_connect_rate"
        ),
    }
    if kind == "resnet":
        return _read_resnet(own, common)
    common |= _read_levels(root, own)
    if kind == "spinenet":
        return _read_spinenet(root, own, common)
    return _read_mobile(own, common)


def _read_resnet(section: GardenSection, common: dict[str, Any]) -> schema.ResNet:
    for name, plain in _PLAIN.items():
        if section.value(name) != plain:
            section.refuse(name, "the blocks of ResNet-RS are not supported", f"{name}={plain}")
    # It is a factor of depth_multiplier, which is 1.
    section.value("scale_stem")
    depth = section.choose("model_id", _DEPTHS, f"{_BACKBONE}.depth")
    return schema.ResNet(depth=depth, project_first_block=True, zero_last_scale=False, **common)


def _read_levels(root: GardenSection, section: GardenSection) -> dict[str, int]:
    """Returns the levels of the model, which the backbone's own have to equal."""
    model = root.child(MODEL)
    for name, only in (("min_level", 3), ("max_level", 7)):
        if model.value(name) != only:
            model.refuse(name, "the network has levels 3 to 7", f"{model.label(name)}={only}")
        if section.value(name) != model.value(name):
            section.refuse(
                name,
                f"{MODEL}.{name} is {model.get(name)}, and both must agree",
                f"{section.label(name)}={model.get(name)}",
            )
    return model.read_fields(_BACKBONE, "min_level", "max_level")


def _read_spinenet(
    root: GardenSection, section: GardenSection, common: dict[str, Any]
) -> schema.SpineNet:
    name = f"{MODEL}.norm_activation.activation"
    root.choose(name, ("relu", "swish"))
    sizes = {name.upper(): size for name, size in SPINENET_SIZES.items()}
    fields = ("endpoints_depth", "filter_scale", "resample_alpha", "repeats")
    model = section.choose("model_id", sizes, *(f"{_BACKBONE}.{field}" for field in fields))
    rate = common.pop("drop_connect_rate") * _UNREAD_BLOCK
    return replace(sizes[model], drop_connect_rate=rate, pools_by_halves=True, **common)


def _read_mobile(section: GardenSection, common: dict[str, Any]) -> schema.SpineNetMbConv:
    if section.value("expand_ratio") != 6:
        section.refuse("expand_ratio", "blocks are six times as wide inside", "expand_ratio=6")
    fields = [f"{_BACKBONE}.{name}" for name in ("endpoints_depth", "filter_scale")]
    size = SPINENET_MBCONV_SIZES[section.choose("model_id", SPINENET_MBCONV_SIZES, *fields)]
    return replace(
        size,
        gate="hard_sigmoid",
        gate_activation="relu",
        rounded_channels=False,
        block_depthwise_initializer=VARIANCE_SCALING,
        **section.read_fields(_BACKBONE, "se_ratio"),
        **common,
    )


# The activations are the networks' own, whatever norm_activation says.
_MOBILENETS: dict[str, schema.Backbone] = {
    "MobileNetV1": schema.MobileNetV1(min_depth=8),
    # Behind the last block there is a convolution that no detector reads.
    "MobileNetV2": schema.MobileNetV2(min_depth=8, last_depth=0),
    "MobileNetV3Large": schema.MobileNetV3Large(
        min_depth=8, end_multiplier=1.0, last_convolution=False
    ),
    "MobileNetV3Small": schema.MobileNetV3Small(
        min_depth=8, end_multiplier=1.0, last_convolution=False
    ),
    "MobileNetV3EdgeTPU": schema.MobileNetEdgeTpu(min_depth=8),
    "MobileNetMultiAVG": schema.MobileNetMulti(fits="avg"),
    "MobileNetMultiMAX": schema.MobileNetMulti(fits="max"),
}
_SEGMENTATION = {
    "MobileNetMultiAVGSeg": "it is for segmentation",
    "MobileNetMultiMAXSeg": "it is for segmentation",
    "MobileNetV3SmallReducedFilters": "it is for segmentation",
}
_MOBILEDETS: dict[str, schema.Backbone] = {
    "MobileDetCPU": schema.MobileDetCpu(),
    "MobileDetDSP": schema.MobileDetDsp(fused_shortcut=False),
    "MobileDetEdgeTPU": schema.MobileDetEdgeTpu(),
    "MobileDetGPU": schema.MobileDetGpu(),
}


def _read_mobilenet(section: GardenSection, conv: schema.ConvHyperparams) -> schema.Backbone:
    for name, only in (
        ("output_stride", None),
        ("output_intermediate_endpoints", False),
        ("stochastic_depth_drop_rate", 0.0),
    ):
        if section.value(name) != only:
            section.refuse(name, None, f"{name}={section.spell(only)}")
    model = section.choose("model_id", _MOBILENETS, f"{_BACKBONE}.kind", reasons=_SEGMENTATION)
    fields = section.read_fields(_BACKBONE, depth_multiplier="filter_size_scale")
    if model == "MobileNetV1" and (fields["depth_multiplier"] * 32) % 1:
        section.refuse(
            "filter_size_scale",
            "the original rounds channels to the nearest whole number, and here they are cut",
            "filter_size_scale=0.5, or another multiple of 1/32",
        )
    return _of_size(_MOBILENETS[model], conv, fields)


def _read_mobiledet(section: GardenSection, conv: schema.ConvHyperparams) -> schema.Backbone:
    model = section.choose("model_id", _MOBILEDETS, f"{_BACKBONE}.kind")
    fields = section.read_fields(_BACKBONE, depth_multiplier="filter_size_scale")
    return _of_size(_MOBILEDETS[model], conv, fields | {"depthwise_initializer": VARIANCE_SCALING})


def _of_size(
    network: schema.Backbone, conv: schema.ConvHyperparams, fields: dict[str, Any]
) -> schema.Backbone:
    """Returns a network whose convolutions keep their activation."""
    assert network.conv is not None
    own = replace(conv, activation=network.conv.activation)
    return replace(network, conv=own, **fields)
