"""RetinaNet's head; batch norms are called after the levels of their maps."""

from functools import partial

from stillbox.checkpoints.name_tables.rules import TF_LAYERS, Context, LayerName
from stillbox.experiment.schema.necks import Pyramid

_layer = partial(LayerName, spelling=TF_LAYERS)


def layers(context: Context) -> tuple[LayerName, ...]:
    """Returns the rules; there are none for maps that have no level."""
    neck = context.model.neck
    if not isinstance(neck, Pyramid):
        return ()
    return (*_net("class_tower", "class_", "class", neck), *_net("box_tower", "box", "box", neck))


def _net(tower: str, predictor: str, theirs: str, neck: Pyramid) -> tuple[LayerName, ...]:
    scope = f"retinanet/{theirs}_net/{theirs}-"
    return (
        _layer(rf"head\.{predictor}", f"{scope}predict"),
        _layer(
            rf"head\.{tower}\.layer_(\d+)(?:\.conv)?",
            f"{scope}{{0}}",
            norm=f"{scope}{{0}}-{{norm}}",
            first_norm=neck.min_level,
        ),
    )
