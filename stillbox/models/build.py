"""From a model's description to the detector; the registry of its parts."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from stillbox.experiment import schema
from stillbox.models.anchors import anchors_per_location
from stillbox.models.backbones.mobilenet_v1 import MobileNetV1
from stillbox.models.backbones.mobilenet_v2 import MobileNetV2
from stillbox.models.backbones.resnet import ResNet
from stillbox.models.backbones.resnet_v1 import ResNetV1
from stillbox.models.backbones.spinenet import SpineNet
from stillbox.models.backbones.spinenet_mbconv import SpineNetMbConv
from stillbox.models.detector import Detector
from stillbox.models.heads.convolutional import ConvolutionalHead
from stillbox.models.heads.weight_shared import WeightSharedHead
from stillbox.models.necks.fpn import Fpn
from stillbox.models.necks.identity import Identity
from stillbox.models.necks.nas_fpn import NasFpn
from stillbox.models.necks.ppn import Ppn
from stillbox.models.necks.retinanet_fpn import RetinaNetFpn
from stillbox.models.necks.ssd_layers import SsdLayers
from stillbox.models.parts import BuildOptions, Outputs, Part

# A new part is one file in its folder and one line here.
BACKBONES: dict[type, Callable[..., Part]] = {
    schema.MobileNetV1: MobileNetV1,
    schema.MobileNetV2: MobileNetV2,
    schema.ResNetV1: ResNetV1,
    schema.ResNet: ResNet,
    schema.SpineNet: SpineNet,
    schema.SpineNetMbConv: SpineNetMbConv,
}
NECKS: dict[type, Callable[..., Part]] = {
    schema.SsdLayers: SsdLayers,
    schema.Ppn: Ppn,
    schema.Fpn: Fpn,
    schema.RetinaNetFpn: RetinaNetFpn,
    schema.NasFpn: NasFpn,
    schema.Identity: Identity,
}
HEADS: dict[type, Callable[..., Part]] = {
    schema.ConvolutionalHead: ConvolutionalHead,
    schema.WeightSharedHead: WeightSharedHead,
}


def build_detector(
    model: schema.Model,
    *,
    seed: int = 0,
    dtype: Any = jnp.float32,  # noqa: ANN401
) -> Detector:
    """Builds a detector with fresh weights.

    Args:
        model: its description.
        seed: of the fresh weights.
        dtype: of activations and products, float32 or bfloat16; parameters are always float32.

    Raises:
        UserError: the neck taps a layer that the backbone lacks, or makes more or fewer feature
            maps than the anchors are described for.
    """
    rng = np.random.default_rng(seed)
    options = BuildOptions(dtype=dtype, freeze_norm=model.freeze_batch_norm, rng=rng)
    backbone = BACKBONES[type(model.backbone)](
        model.backbone, model.neck.taps_of(model.backbone), options
    )
    neck = NECKS[type(model.neck)](model.neck, backbone.channels, options)
    outputs = Outputs(
        anchors=anchors_per_location(model.anchors, len(neck.channels)),
        slots=model.num_classes + model.background_class,
        codes=model.box_coder.code_size,
    )
    head = HEADS[type(model.head)](model.head, neck.channels, outputs, options)
    return Detector(backbone, neck, head, model, dtype)
