"""Forms for each platform, calls that are not inlined, bits of bfloat16, and sums.

XLA's CPU backend converts a whole bfloat16 array to float32, in memory, before a loop or several
operations that read parts of it. As 16-bit integers it is not converted: the gradients of a
depthwise convolution of 16 x 75 x 75 x 128 take two CPUs 12 ms instead of 23.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial, wraps
from typing import TypeVar, cast

import jax
import jax.numpy as jnp

from stillbox.jax_internals import set_xla_metadata
from stillbox.lowering import Lowering, current_lowering
from stillbox.models.parallel import batch_shard_map, is_spatially_partitioned

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., object])


def to_bits(x: jax.Array) -> jax.Array:
    """Returns bfloat16 as integers of the same shape, and any other type unchanged."""
    return jax.lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x


def from_bits(bits: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Returns the values of `to_bits` of an array of that type, or of a part of it."""
    return jax.lax.bitcast_convert_type(bits, dtype) if dtype == jnp.bfloat16 else bits


def per_platform(
    *arrays: object,
    cpu: Callable[..., Result],
    gpu: Callable[..., Result] | None = None,
    default: Callable[..., Result],
    plain: Callable[..., Result] | None = None,
) -> Result:
    """Calls `cpu` if the program runs on a CPU, `gpu` (if any) on a GPU, else `default`.

    All take the given arrays, or pytrees of them. A portable lowering calls `plain`, if any, else
    `default`. If devices share images, `default` is used everywhere: XLA can divide its own
    operations along the height, but turns shifted views into correct, slow code.
    """
    lowering = current_lowering()
    if lowering.portable:
        return (plain or default)(*arrays)
    if is_spatially_partitioned():
        return default(*arrays)
    if lowering.platform is not None:
        forms = {"cpu": cpu, "gpu": gpu or default}
        return forms.get(lowering.platform, default)(*arrays)
    gpus = {} if gpu is None else {"cuda": gpu, "rocm": gpu}
    result: Result = jax.lax.platform_dependent(*arrays, cpu=cpu, default=default, **gpus)
    return result


def jit_per_lowering(function: Function, *, static_argnums: tuple[int, ...]) -> Function:
    """Returns `jax.jit` of a function, with one trace for all layers of a shape and a lowering.

    JAX's cache of traces does not know the lowering, so it is passed as an argument.
    """

    def traced(lowering: Lowering, *arguments: object) -> object:
        del lowering
        return function(*arguments)

    traced.__name__ = function.__name__
    compiled = jax.jit(traced, static_argnums=(0, *(number + 1 for number in static_argnums)))

    @wraps(function)
    def call(*arguments: object) -> object:
        return compiled(current_lowering(), *arguments)

    return cast(Function, call)


def no_inline(function: Callable[..., Result], **static: Hashable) -> Callable[..., Result]:
    """Returns a function of arrays, defined at module level, that stays a call when compiled.

    XLA's CPU backend fuses a cheap operation into each of its consumers and computes it again
    there: nine shifted products once for each sum of a batch norm and once more for its result.
    Fusion does not cross a call. `static` are fixed keyword arguments.
    """
    compiled = jax.jit(function, static_argnames=tuple(static))

    def call(*arrays: jax.Array) -> Result:
        # As a context manager the attribute would also mark the calls inside.
        result: Result = set_xla_metadata(compiled(*arrays, **static), inlineable="false")
        return result

    return call


def computed_once(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns a function of scalars with results that a CPU computes once.

    XLA's CPU backend fuses a scalar expression into each loop that reads it: the cosine of a
    learning rate is then compiled for each shape of a parameter.
    """
    alone = no_inline(function)

    def call(*scalars: jax.Array) -> Result:
        return per_platform(*scalars, cpu=alone, default=function)

    return call


RowBlock = Callable[[int, int], jax.Array]
Term = Callable[..., jax.Array]

# More terms in one sum are no faster. From 16 terms on, a sum of bfloat16 takes three to seven
# times as long.
_MOST_TERMS = 13
# A power of two: an eighth of a number is exact.
_ROWS = 8
# Rows that a loop over rows adds in one step. More are no faster, fewer are slower.
_STEP_ROWS = 5
# Squares of fewer elements take no time; squares of more are added up in so many blocks.
_FEW_SQUARES, _BLOCKS_OF_SQUARES = 2**16, 16


@jax.named_scope("channel_sum")
def channel_sum(term: Term, *arrays: jax.Array) -> jax.Array:
    """Sums `term(*arrays)` over batch and space, `[C]` float32.

    Args:
        term: elementwise, with a float32 result of the arrays' shape.
        arrays: `[B, H, W, C]` each.
    """
    traced = jax.jit(term, inline=True)  # once, not for every block

    def on_cpu(*values: jax.Array) -> jax.Array:
        def block(start: int, stop: int) -> jax.Array:
            return traced(*(value[:, start:stop] for value in values))

        return sum_of_rows(block, values[0].shape[1])

    def elsewhere(*values: jax.Array) -> jax.Array:
        return jnp.sum(term(*values), axis=(0, 1, 2), dtype=jnp.float32)

    return per_platform(*arrays, cpu=on_cpu, default=elsewhere)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def add_bias(x: jax.Array, bias: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Adds `bias`, `[C]`, to `[B, H, W, C]`, both float32, and rounds the sum to `dtype`.

    The gradient of the bias is a `channel_sum`: 2 ms in place of 55 for maps of 48 x 48 and
    24 x 24, 4 images and 819 channels on two CPUs.
    """
    return (x + bias).astype(dtype)


def _add_bias_forward(x: jax.Array, bias: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, None]:
    return add_bias(x, bias, dtype), None


def _add_bias_backward(
    dtype: jnp.dtype, saved: None, gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    del dtype, saved

    def on_cpu(gradient: jax.Array) -> tuple[jax.Array]:
        # A call: XLA would otherwise compute the slice of the joined predictions' gradient inside
        # the loop of the sum.
        return (no_inline(_sum_of_maps)(gradient),)

    sharded = batch_shard_map(on_cpu, ("batch",), ("replicated",))
    total = per_platform(gradient, cpu=lambda x: sharded(x)[0], default=_sum_of_maps)
    return as_float32(gradient), total


def _sum_of_maps(x: jax.Array) -> jax.Array:
    return channel_sum(as_float32, x)


def as_float32(x: jax.Array) -> jax.Array:
    """Returns the array in float32."""
    return x.astype(jnp.float32)


add_bias.defvjp(_add_bias_forward, _add_bias_backward)


@jax.named_scope("channel_sum")
def channel_sums(terms: Sequence[Term], *arrays: jax.Array) -> list[jax.Array]:
    """Returns `channel_sum` of each of several terms of the same arrays.

    Memory limits a CPU in float32, so the arrays are read once for all terms: a quarter less time
    for the two sums of a batch norm's gradient. Shorter types are faster term by term.
    """

    def on_cpu(*values: jax.Array) -> list[jax.Array]:
        def add(totals: list[jax.Array], index: jax.Array) -> list[jax.Array]:
            row = [jax.lax.dynamic_slice_in_dim(value, index, 1, axis=1) for value in values]
            return [total + term(*row) for total, term in zip(totals, terms, strict=True)]

        batch, height, width, channels = values[0].shape
        zeros = jnp.zeros((batch, 1, width, channels), jnp.float32)
        totals = fold_rows(add, [zeros for _ in terms], height)
        return [sum_by_product(total) for total in totals]

    def apart(*values: jax.Array) -> list[jax.Array]:
        return [channel_sum(term, *values) for term in terms]

    if any(array.dtype != jnp.float32 for array in arrays):
        return apart(*arrays)
    return per_platform(*arrays, cpu=on_cpu, default=apart)


def fold_rows(
    add: Callable[[list[jax.Array], jax.Array], list[jax.Array]],
    totals: list[jax.Array],
    height: int,
) -> list[jax.Array]:
    """Adds rows 0 to `height` to totals of any shape, several rows in each step of a loop.

    `add` maps totals and the index of a row to the totals with that row. The row stays in the cache
    for all totals.
    """

    add = jax.jit(add, inline=True)  # traced once, not for every row

    def add_rows(totals: list[jax.Array], start: jax.Array, rows: int) -> list[jax.Array]:
        for offset in range(rows):
            totals = add(totals, start + offset)
        return totals

    steps, rest = divmod(height, _STEP_ROWS)
    totals = jax.lax.fori_loop(
        0, steps, lambda step, totals: add_rows(totals, step * _STEP_ROWS, _STEP_ROWS), totals
    )
    return add_rows(totals, jnp.asarray(steps * _STEP_ROWS), rest)


def sum_of_rows(block: RowBlock, height: int) -> jax.Array:
    """Sums an elementwise expression of `height` rows in a form that is fast on CPUs, `[C]`.

    The reduction of XLA's CPU backend is a scalar loop. Adding blocks of rows is elementwise and so
    vectorised, and a matrix product sums the small remainder.

    Args:
        block: returns rows `[B, start:stop, W, C]` of the expression, float32.
        height: number of rows.
    """
    terms = min(range(1, min(_MOST_TERMS, height) + 1), key=lambda n: height // n + height % n)
    rows = height // terms
    total = block(0, rows)
    for index in range(1, terms):
        total = total + block(index * rows, (index + 1) * rows)
    result = sum_by_product(total)
    if terms * rows < height:
        result = result + sum_by_product(block(terms * rows, height))
    return result


def sum_by_product(x: jax.Array) -> jax.Array:
    """Sums over all axes but the last by a matrix product, float32: best for small arrays."""
    # Several equal rows: XLA would fuse a product with a single one into the loop that computes
    # `x`, which makes it scalar again.
    flat = x.reshape(-1, x.shape[-1])
    shares = jnp.full((_ROWS, flat.shape[0]), 1 / _ROWS, flat.dtype)
    return jnp.sum(shares @ flat, axis=0)


def norm_of(arrays: Iterable[jax.Array]) -> jax.Array:
    """Returns the Euclidean norm of all elements of arrays of any shape, a float32 scalar.

    Small arrays are joined first: XLA's CPU backend compiles each shape of a sum by itself.
    """
    given = list(arrays)
    small = [array.reshape(-1) for array in given if array.size < _FEW_SQUARES]
    summed = [array for array in given if array.size >= _FEW_SQUARES]
    if small:
        summed.append(jnp.concatenate(small))
    return jnp.sqrt(sum(map(square_sum, summed), start=jnp.zeros((), jnp.float32)))


@jax.custom_jvp
def square_sum(x: jax.Array) -> jax.Array:
    """Returns the sum of the squares of an array of any shape, a float32 scalar.

    22 million elements take two CPUs 5 ms; XLA's own sum takes 18 ms and has an error of 4e-7.
    """
    if x.size < _FEW_SQUARES:
        return _plain_square_sum(x)
    return per_platform(x, cpu=_square_sum_in_blocks, default=_plain_square_sum)


@square_sum.defjvp
def _square_sum_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x,), (tangent,) = primals, tangents
    return square_sum(x), 2 * jnp.sum(x * tangent, dtype=jnp.float32)


def _plain_square_sum(x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(x), dtype=jnp.float32)


# Traced once for each shape.
@partial(jax.jit, inline=True)
def _square_sum_in_blocks(x: jax.Array) -> jax.Array:
    flat = x.reshape(-1)
    length = flat.size // _BLOCKS_OF_SQUARES
    total = jnp.square(flat[:length])
    for start in range(length, _BLOCKS_OF_SQUARES * length, length):
        total = total + jnp.square(flat[start : start + length])
    rest = flat[_BLOCKS_OF_SQUARES * length :]
    return jnp.sum(total, dtype=jnp.float32) + _plain_square_sum(rest)
