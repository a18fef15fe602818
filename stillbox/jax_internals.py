"""Interfaces of JAX that are experimental or half private; no other module imports them.

JAX may change them in any release. Each was first seen to work with JAX 0.10.0, the oldest release
that is supported.
"""

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
