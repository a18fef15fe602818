"""No neck: the backbone's taps are the feature maps."""

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.parts import BuildOptions, Part


@implements(schema.Identity)
class IdentityNeck(Part):
    """Returns the taps unchanged."""

    def __init__(
        self, config: schema.Identity, inputs: tuple[int, ...], options: BuildOptions
    ) -> None:
        self.channels = inputs

    def __call__(
        self, taps: tuple[jax.Array, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        """Returns the taps as the feature maps."""
        return taps
