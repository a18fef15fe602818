"""The published settings of RetinaNet on TPU, as layers over the defaults.

Source: tensorflow/tpu, `models/official/detection/configs/yaml`. The recipes of the same names are
these settings as experiments, with their scores.
"""

from collections.abc import Mapping

from stillbox.experiment.values import Node, Plain

_RATES = "train.learning_rate"


def _rates(first: float, *levels: float, steps: tuple[int, int]) -> dict[str, Plain]:
    return {
        f"{_RATES}.init_learning_rate": first,
        f"{_RATES}.learning_rate_levels": levels,
        f"{_RATES}.learning_rate_steps": steps,
    }


def _parser(side: int, smallest: float, greatest: float) -> dict[str, Plain]:
    return {
        "retinanet_parser.output_size": (side, side),
        "retinanet_parser.aug_scale_min": smallest,
        "retinanet_parser.aug_scale_max": greatest,
    }


def _spinenet(model: str, drop: float) -> dict[str, Plain]:
    """Returns the settings of all SpineNets of residual blocks: 500 epochs of batches of 256."""
    return {
        "architecture.backbone": "spinenet",
        "architecture.multilevel_features": "identity",
        "spinenet.model_id": model,
        "spinenet.init_drop_connect_rate": drop,
        "batch_norm_activation.use_sync_bn": True,
        "batch_norm_activation.activation": "swish",
        "train.train_batch_size": 256,
        "train.total_steps": 231500,
        f"{_RATES}.warmup_steps": 2000,
        "train.l2_weight_decay": 4e-5,
        "train.gradient_clip_norm": 10.0,
        **_rates(0.28, 0.028, 0.0028, steps=(217610, 226870)),
    }


TEMPLATES: Mapping[str, Mapping[str, Plain]] = {
    "retinanet_nasfpn": {
        "architecture.multilevel_features": "nasfpn",
        "nasfpn.num_repeats": 5,
        "train.total_steps": 90000,
        **_rates(0.08, 0.008, 0.0008, steps=(60000, 80000)),
        **_parser(640, 0.8, 1.2),
    },
    "retinanet_autoaugment": {
        "retinanet_parser.aug_policy": "v0",
        "train.total_steps": 277200,
        **_rates(0.08, 0.008, 0.0008, steps=(220000, 258700)),
        **_parser(640, 0.8, 1.2),
    },
    "spinenet49S_retinanet": {
        **_spinenet("49S", 0.2),
        **_parser(640, 0.5, 2.0),
        "retinanet_head.num_filters": 128,
        "anchor.anchor_size": 3.0,
    },
    "spinenet49_retinanet": {
        **_spinenet("49", 0.2),
        **_parser(640, 0.5, 2.0),
        "anchor.anchor_size": 3.0,
    },
    "spinenet96_retinanet": {
        **_spinenet("96", 0.2),
        **_parser(1024, 0.5, 2.0),
        "anchor.anchor_size": 3.0,
    },
    "spinenet143_retinanet": {**_spinenet("143", 0.16), **_parser(1280, 0.1, 1.9)},
    "spinenet190_retinanet": {
        **_spinenet("190", 0.2),
        **_parser(1280, 0.1, 1.9),
        **_rates(0.3, 0.03, 0.003, steps=(171310, 180570)),
        "train.total_steps": 185200,
        "retinanet_head.num_filters": 512,
        "retinanet_head.num_convs": 7,
    },
    "spinenet-mbconv49_retinanet": {
        "architecture.backbone": "spinenet_mbconv",
        "architecture.multilevel_features": "identity",
        "spinenet_mbconv.model_id": "49",
        "batch_norm_activation.use_sync_bn": True,
        "batch_norm_activation.activation": "swish",
        "train.train_batch_size": 256,
        "train.total_steps": 277800,
        "train.l2_weight_decay": 3e-5,
        **_rates(0.28, 0.028, 0.0028, steps=(263910, 273170)),
        **_parser(384, 0.5, 2.0),
        "retinanet_head.num_filters": 48,
        "retinanet_head.use_separable_conv": True,
        "anchor.anchor_size": 3.0,
    },
}
"""File name -> dotted path -> value."""


def template_tree(name: str) -> Node:
    """Returns a template as the tree that its file would be."""
    return tree_of(TEMPLATES[name], f"template {name}")


def tree_of(values: Mapping[str, Plain], where: str) -> Node:
    """Returns values by dotted path as a tree; all of it stands at `where`."""
    root: dict[str, Node] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        place = root
        for section in sections:
            place = place.setdefault(section, Node({}, where)).value
        items = [Node(item, where) for item in value] if isinstance(value, tuple) else value
        place[name] = Node(items, where)
    return Node(root, where)
