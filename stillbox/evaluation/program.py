"""The program that scores and predicts: from images to detections, spread over a mesh.

Everything is expressed as shapes and shardings; neither arrays nor devices are touched before a
program is compiled. The devices may therefore belong to a topology that is not there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from stillbox.boxes.structures import AnyArray, Detections
from stillbox.devices.compiling import Compilation
from stillbox.devices.free_memory import refuse_program_shortage
from stillbox.devices.mesh import (
    batch_shardings,
    build_mesh,
    put_batch,
    replicate,
    replicated,
    tracing_for,
)
from stillbox.experiment import schema
from stillbox.models.build import abstract_detector
from stillbox.models.detector import DetectFunction, detect_function
from stillbox.models.layers.conv import may_prepare_kernels
from stillbox.models.layers.lowering.winograd import PreparedKernels
from stillbox.models.variables import Arrays
from stillbox.printing import count_text

BoundDetect = Callable[[AnyArray, AnyArray], Detections]
"""From images `[B, H, W, C]` and true sizes `[B, 2]`, on the host, to detections."""

AbstractArrays = dict[str, jax.ShapeDtypeStruct]


class PreparedWeights(NamedTuple):
    """Arrays of a detector on the devices of a program."""

    params: Arrays
    stats: Arrays
    kernels: PreparedKernels


@dataclass(frozen=True)
class DetectProgram:
    """A detector's program for batches of one size, compiled when it is first called."""

    mesh: Mesh
    function: DetectFunction
    params: AbstractArrays
    """Parameters by path, whole on every device."""
    stats: AbstractArrays
    """Moving statistics by path, whole on every device."""
    images: jax.ShapeDtypeStruct
    """`[B, H, W, C]` float32."""
    true_sizes: jax.ShapeDtypeStruct
    """`[B, 2]` int32."""
    prepares_kernels: bool
    """Whether kernels of convolutions may be prepared before the first batch, for a single CPU."""
    devices: schema.Devices
    """Algorithms of convolutions on CPUs, and where compiled programs are kept."""

    def lower(self) -> jax.stages.Lowered:
        """Returns the traced program, ready to be compiled."""
        batch = (self.images, self.true_sizes)
        whole, rows = replicated(self.mesh), batch_shardings(batch, self.mesh)

        def detect(
            params: Arrays,
            stats: Arrays,
            kernels: PreparedKernels,
            images: jax.Array,
            true_sizes: jax.Array,
        ) -> Detections:
            function = partial(self.function, params, stats)
            if self._has_one_cpu:
                return _one_by_one(function, kernels, images, true_sizes)
            return function(images, true_sizes)

        # Detections stay where their images are.
        jitted = jax.jit(detect, in_shardings=(whole, whole, whole, *rows), out_shardings=rows[1])
        with tracing_for(self.mesh, self.devices):
            return jitted.lower(self.params, self.stats, self._preparation.out_info, *batch)

    @cached_property
    def _preparation(self) -> jax.stages.Traced:
        """The program that prepares the kernels of a single CPU; there are none elsewhere."""

        def kernels(params: Arrays, stats: Arrays) -> PreparedKernels:
            prepared = PreparedKernels()
            if self.prepares_kernels and self._has_one_cpu:
                image, true_size = (
                    jnp.zeros((1, *array.shape[1:]), array.dtype)
                    for array in (self.images, self.true_sizes)
                )
                self.function(params, stats, image, true_size, prepared)
            return prepared

        whole = replicated(self.mesh)
        with tracing_for(self.mesh, self.devices):
            jitted = jax.jit(kernels, in_shardings=(whole, whole), out_shardings=whole)
            return jitted.trace(self.params, self.stats)

    @property
    def _has_one_cpu(self) -> bool:
        return takes_images_one_by_one(list(self.mesh.devices.flat))

    @cached_property
    def compiled(self) -> jax.stages.Compiled:
        """The compiled program; it is compiled once.

        Raises:
            UserError: it needs more memory than this machine has.
        """
        compiled = self._compilation.result()
        memory = compiled.memory_analysis()
        if memory is not None:
            refuse_program_shortage(
                memory.temp_size_in_bytes + memory.output_size_in_bytes,
                f"the compiled detector for {count_text(self.images.shape[0], 'image')} at a time",
                where="model.postprocessing",
                fix="lower the limits of its nms, evaluation.batch_size or the size of "
                "model.resizer, or end other programs",
            )
        return compiled

    @cached_property
    def _compilation(self) -> Compilation:
        return Compilation(self.lower(), "the detector")

    @cached_property
    def _preparing(self) -> Compilation:
        return Compilation(self._preparation.lower(), "the kernels")

    def prepare(self, params: Arrays, stats: Arrays) -> PreparedWeights:
        """Puts weights, by path, on all devices and prepares the kernels of convolutions there.

        The detector is compiled at the same time.
        """
        kernels = self._preparation.out_info
        preparing = self._preparing if kernels else None
        _ = self._compilation
        params, stats = replicate((params, stats), self.mesh)
        if preparing is not None:
            kernels = preparing.result()(params, stats)
        return PreparedWeights(params, stats, kernels)

    def bind_weights(self, weights: PreparedWeights) -> BoundDetect:
        """Returns `bind` of the result of `prepare`, which may be for batches of another size."""

        def detect(images: AnyArray, true_sizes: AnyArray) -> Detections:
            batch = put_batch((images, true_sizes), self.mesh)
            detections: Detections = self.compiled(*weights, *batch)
            return detections

        return detect

    def bind(self, params: Arrays, stats: Arrays) -> BoundDetect:
        """Returns the detector with these weights, by path; it takes batches from the host."""
        return self.bind_weights(self.prepare(params, stats))


def takes_images_one_by_one(devices: Sequence[jax.Device]) -> bool:
    """Returns whether a program for these devices detects in one image after the other."""
    return len(devices) == 1 and devices[0].platform == "cpu"


def _one_by_one(
    function: Callable[[jax.Array, jax.Array, PreparedKernels], Detections],
    kernels: PreparedKernels,
    images: jax.Array,
    true_sizes: jax.Array,
) -> Detections:
    """Returns the detections in a batch, with prepared kernels and one image after the other.

    The maps of one image stay in the cache of a CPU: eight of SSD MobileNet v1 take a quarter less
    time. A long suppression of one image does not prolong the others'.
    """

    def detect(batch: tuple[jax.Array, jax.Array]) -> Detections:
        image, true_size = (array[None] for array in batch)
        return function(image, true_size, kernels)

    detections = jax.lax.map(detect, (images, true_sizes))
    return jax.tree.map(lambda array: array[:, 0], detections)


def score_program(experiment: schema.Experiment, mesh: Mesh | None = None) -> DetectProgram:
    """Returns the program that scores an experiment, for `score_batch_size` images.

    `mesh` divides `evaluation.batch_size`; None: `score_mesh` of all devices.

    Raises:
        UserError: the devices cannot be divided as the experiment says.
    """
    if mesh is None:
        return _detect_program(experiment, score_mesh(experiment), score_batch_size(experiment))
    return _detect_program(experiment, mesh, experiment.evaluation.batch_size)


def score_batch_size(experiment: schema.Experiment) -> int:
    """Returns `evaluation.batch_size`, rounded up so that every device gets as many images.

    Detections do not depend on it. Many configs say 1; rounding up keeps every device busy.
    """
    rows = max(jax.device_count() // experiment.devices.spatial_partitions, 1)
    return -(-experiment.evaluation.batch_size // rows) * rows


def score_mesh(experiment: schema.Experiment) -> Mesh:
    """Returns the mesh of all devices that an experiment is scored on.

    Raises:
        UserError: the devices cannot be divided as the experiment says.
    """
    size = score_batch_size(experiment)
    return build_mesh(size, experiment.devices, where="evaluation.batch_size")


def predict_program(
    experiment: schema.Experiment, mesh: Mesh | None = None, *, batch_size: int = 1
) -> DetectProgram:
    """Returns the program that predicts, for `batch_size` images at a time.

    Without a mesh it runs on the first device: a model trained on many devices predicts on one.
    """
    if mesh is None:
        mesh = build_mesh(batch_size, schema.Devices(), jax.local_devices()[:1])
    return _detect_program(experiment, mesh, batch_size)


def _detect_program(experiment: schema.Experiment, mesh: Mesh, batch_size: int) -> DetectProgram:
    model = experiment.model
    precision, quantization = experiment.evaluation.precision, experiment.train.quantization
    detector = abstract_detector(model, precision, quantization)
    return DetectProgram(
        mesh=mesh,
        function=detect_function(detector.graph),
        params=detector.params,
        stats=detector.stats,
        images=jax.ShapeDtypeStruct((batch_size, *model.image_shape), jnp.float32),
        true_sizes=jax.ShapeDtypeStruct((batch_size, 2), jnp.int32),
        prepares_kernels=may_prepare_kernels(detector.module()),
        devices=experiment.devices,
    )
