"""Interfaces of JAX that are experimental or half private; no other module imports them.

JAX may change them in any release. Each was first seen to work with JAX 0.10.0, the oldest release
that is supported.
"""

import os

import jax

# Shape and type of what a primitive returns, without values.
from jax.core import ShapedArray as ShapedArray

# Collectives between the hosts of a job, outside of a program.
from jax.experimental import multihost_utils as multihost_utils

# Descriptions of devices that are not present, to compile for them.
from jax.experimental import topologies as topologies

# The order of a matrix in memory, which decides how fast XLA's CPU backend multiplies it.
from jax.experimental.layout import Layout as Layout
from jax.experimental.layout import with_layout_constraint as with_layout_constraint

# The mark of a function that XLA is to compile by itself.
from jax.experimental.xla_metadata import set_xla_metadata as set_xla_metadata

# A constant among the variables of a traced program.
from jax.extend.core import Literal as Literal

# Suppression is one operation in traced programs, for which an exporter writes its own.
from jax.extend.core import Primitive as Primitive

# The serial form of StableHLO in the versions of other readers.
from jaxlib.mlir import ir as ir
from jaxlib.mlir.dialects import stablehlo as stablehlo
from jaxlib.mlir.passmanager import PassManager as PassManager

_YNNPACK = "--xla_cpu_experimental_ynn_fusion_type"


def keep_fusions_whole() -> None:
    """Limits YNNPACK in XLA's CPU backend to single matrix products, before its first program.

    From jax 0.10.2 on it takes sums and elementwise operations too, whose operands then become
    arrays in memory: the focal loss needs seven arrays as large as the logits and not one, and
    twice the time. With a product it takes the operations before it: each slice of an image that is
    summed becomes an array, which a function of its own copies, and LLVM compiles.

    XLA ends the process at a flag that it does not know. The flag is therefore set for the releases
    that were tried.
    """
    flags, release = os.environ.get("XLA_FLAGS", ""), jax.__version_info__[:3]
    if (0, 10, 2) <= release <= (0, 12, 0) and _YNNPACK not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_YNNPACK}=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT".strip()


keep_fusions_whole()
