"""MobileDet: taps, forms of blocks, initialisers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.experiment import schema
from stillbox.models.backbones.mobiledet import MobileDetBackbone, mobiledet_blocks
from stillbox.models.layers.initializers import ShapesOnly
from stillbox.models.parts import BuildOptions

_SHAPES = BuildOptions(dtype=jnp.float32, freeze_norm=True, rng=ShapesOnly())
ALL = (
    schema.MobileDetCpu(),
    schema.MobileDetGpu(),
    schema.MobileDetDsp(),
    schema.MobileDetEdgeTpu(),
)
KINDS = [config.kind for config in ALL]


@pytest.mark.parametrize("config", ALL, ids=KINDS)
def test_every_layer_can_be_tapped_and_levels_have_their_strides(config):
    taps = config.layers
    backbone = nnx.eval_shape(lambda: MobileDetBackbone(config, taps, _SHAPES))
    images = jax.ShapeDtypeStruct((1, 96, 64, 3), jnp.float32)
    maps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    assert tuple(tap.shape[3] for tap in maps) == backbone.channels
    shapes = dict(zip(taps, (tap.shape[1:3] for tap in maps), strict=True))
    assert {level: shapes[name] for level, name in config.levels.items()} == {
        2: (24, 16),
        3: (12, 8),
        4: (6, 4),
        5: (3, 2),
    }
    for level in (2, 3, 4):
        following = taps[taps.index(config.levels[level]) + 1]
        assert shapes[following] != shapes[config.levels[level]]


@pytest.mark.parametrize(
    ("config", "forms", "gates"),
    [
        # Counted in the original's definitions.
        (ALL[0], {"inverted": 19}, 19),
        (ALL[1], {"inverted": 1, "fused": 17, "tucker": 4}, 0),
        (ALL[2], {"inverted": 12, "fused": 8, "tucker": 2}, 0),
        (ALL[3], {"inverted": 11, "fused": 10, "tucker": 1}, 0),
    ],
    ids=KINDS,
)
def test_each_kind_of_hardware_has_its_forms_of_blocks(config, forms, gates):
    blocks = mobiledet_blocks(config)
    assert {form: sum(block.form == form for block in blocks) for form in forms} == forms
    assert len(blocks) == sum(forms.values())
    assert sum(block.gate is not None for block in blocks) == gates


def test_ties_between_widths_fall_as_in_float32():
    # 240 * .35 is 84; the float32 next to .35 is below it, so that 80 is nearer than 88.
    assert mobiledet_blocks(schema.MobileDetDsp(depth_multiplier=0.35))[-1].channels == 80
    assert mobiledet_blocks(schema.MobileDetDsp())[-1].channels == 240


def test_depthwise_kernels_are_drawn_for_a_single_input():
    config = schema.MobileDetCpu(depth_multiplier=0.5)
    options = BuildOptions(dtype=jnp.float32, freeze_norm=True, rng=np.random.default_rng(0))
    backbone = MobileDetBackbone(config, ("block_6",), options)
    for block, size in ((5, 3), (6, 5)):
        kernel = np.asarray(getattr(backbone, f"block_{block}").depthwise.kernel)
        assert kernel.shape[:2] == (size, size)
        # He's rule: the variance is 2 over the inputs of an output.
        assert kernel.std() == pytest.approx(np.sqrt(2) / size, rel=0.05)
    kernel = np.asarray(backbone.block_6.expand.kernel)
    assert kernel.std() == pytest.approx(np.sqrt(2 / kernel.shape[2]), rel=0.05)
