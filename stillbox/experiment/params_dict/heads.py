"""`retinanet_head` (TPU detection fact sheet 3.3)."""

import math

from stillbox.experiment.params_dict.layers import GLOROT_UNIFORM, read_conv
from stillbox.experiment.params_dict.reading import Reading
from stillbox.experiment.schema import RandomNormal, WeightSharedHead

_SECTION, _PATH = "retinanet_head", "model.head"


def read_head(reading: Reading) -> WeightSharedHead:
    """Reads the head. Every score starts at 0.01."""
    separable = reading.take(f"{_SECTION}.use_separable_conv", f"{_PATH}.depthwise")
    norm = reading.take(f"{_SECTION}.use_batch_norm", f"{_PATH}.conv.batch_norm")
    return WeightSharedHead(
        depthwise=separable,
        kernel_size=3,
        class_bias_init=-math.log(99),
        # Separable convolutions keep TensorFlow's initialiser in all layers.
        predictor_initializer=None if separable else RandomNormal(stddev=1e-5),
        conv=read_conv(
            reading,
            _SECTION,
            _PATH,
            initializer=GLOROT_UNIFORM if separable else RandomNormal(stddev=0.01),
            biased=True,
            norm=norm,
        ),
        **reading.fill(_SECTION, _PATH, depth="num_filters", layers_before="num_convs"),
    )
