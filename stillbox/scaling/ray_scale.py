"""The workers of a run on Ray: their number, and what each takes of the cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stillbox.devices.announcing import say_aside
from stillbox.devices.chips import Chip, chips_of, parse_slice
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.run_length import depends_on_replicas
from stillbox.printing import count_text
from stillbox.references import Parameter
from stillbox.scaling.ray_worker import fitting_workers

_WHERE = str(Parameter("workers"))
# Ray's names of generations, where JAX has others.
_GENERATIONS = {"v5e": "v5litepod"}


@dataclass(frozen=True)
class Slice:
    """A slice of TPUs, of which each machine runs one worker."""

    chip: Chip
    sides: str
    """As in 4x4."""

    @property
    def name(self) -> str:
        """As `--slice` takes it."""
        return f"{self.chip.generation}:{self.sides}"

    @property
    def generation(self) -> str:
        """Ray's name of the generation."""
        return _GENERATIONS.get(self.chip.generation, self.chip.generation)

    @property
    def accelerator(self) -> str:
        """Ray's name of the chips."""
        return f"TPU-{self.generation.upper()}"

    @property
    def machines(self) -> int:
        """Machines of the slice."""
        return self.chip.machines(self.sides)

    @property
    def chips(self) -> int:
        """Chips of a machine."""
        return chips_of(self.sides) // self.machines


@dataclass(frozen=True)
class Workers:
    """The number of workers of a run, and the resources of each.

    Raises:
        UserError: a number or a resource cannot be had.
    """

    least: int
    most: int
    resources: Mapping[str, float] = field(default_factory=dict)
    """Amounts by Ray's names, such as `{"GPU": 8}`; empty: all GPUs of a machine, or one CPU."""
    slice: Slice | None = None
    """Workers are the machines of slices of this kind; None: they have no TPUs."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UserError(
                f"there are no {self.least} to {self.most} workers",
                where=_WHERE,
                fix="give a number, or the least and the most, as in 2:8",
            )
        if self.slice is not None:
            _refuse_part_of_slice(self, self.slice)
        elif "TPU" in self.resources:
            raise UserError(
                "TPUs come in slices",
                where=Parameter("resources"),
                fix="name a slice of the cluster in place of TPU, as in "
                f"{Parameter('slice', 'v6e:4x4')}",
            )
        for name, amount in self.resources.items():
            if amount <= 0 or (name == "GPU" and amount != int(amount)):
                raise UserError(
                    f"a worker cannot have {amount:g} of {name}",
                    where=Parameter("resources"),
                    fix="for example GPU=8",
                )

    @property
    def devices(self) -> int:
        """Devices of a worker: its chips or their cores, its GPUs, or its processor."""
        if self.slice is not None:
            return self.slice.chips * self.slice.chip.devices
        return int(self.resources.get("GPU", 1))

    @property
    def platform(self) -> str:
        """JAX's name of the devices."""
        if self.slice is not None:
            return "tpu"
        return "gpu" if "GPU" in self.resources else "cpu"

    @property
    def per_slice(self) -> int:
        """Workers that come and go together: the machines of a slice; 1 without slices."""
        return self.slice.machines if self.slice is not None else 1

    def describe(self) -> str:
        """Returns the numbers as words."""
        number = f"{self.least} to {self.most}" if self.least != self.most else str(self.most)
        each = ", ".join(f"{name}={amount:g}" for name, amount in self.resources.items())
        kind = f", machines of {self.slice.name}," if self.slice is not None else ""
        return f"{number} {'worker' if self.most == 1 else 'workers'}{kind} with {each} each"

    def scaling(self) -> dict[str, Any]:
        """Returns arguments of Ray's `ScalingConfig`."""
        arguments: dict[str, Any] = {
            "num_workers": (self.least, self.most) if self.least != self.most else self.most,
            "use_gpu": self.platform == "gpu",
            "resources_per_worker": dict(self.resources),
        }
        if self.slice is not None:
            arguments |= {
                "use_tpu": True,
                "topology": self.slice.sides,
                "accelerator_type": self.slice.accelerator,
            }
        return arguments


def _refuse_part_of_slice(workers: Workers, tpus: Slice) -> None:
    if workers.resources.get("TPU") != tpus.chips or "GPU" in workers.resources:
        raise UserError(
            f"a worker has all {tpus.chips} chips of its machine, and no GPU",
            where=Parameter("resources"),
            fix=f"leave TPU and GPU out beside {Parameter('slice', f'{tpus.name}')}",
        )
    if workers.least % tpus.machines or workers.most % tpus.machines:
        nearest = max(workers.least // tpus.machines, 1) * tpus.machines
        raise UserError(
            f"a slice {tpus.name} has {count_text(tpus.machines, 'machine')}, each with a worker",
            where=_WHERE,
            fix=f"give a multiple, such as {nearest}",
        )


def find_workers(
    engine: str,
    workers: int | tuple[int, int] | None,
    resources: Mapping[str, float] | None,
    tpu_slice: str | None = None,
) -> Workers | None:
    """Returns the workers of the engine `ray`; None for `local`.

    Raises:
        UserError: engine, workers, resources and slice do not belong together.
    """
    if engine not in ("local", "ray"):
        raise UserError(
            f"there is no engine {engine!r}", where=Parameter("engine"), fix="local or ray"
        )
    if engine == "local":
        if workers is not None or resources or tpu_slice:
            raise UserError(
                f"{Parameter('workers')}, {Parameter('resources')} and {Parameter('slice')} "
                f"belong to {Parameter('engine', 'ray')}",
                where=_WHERE,
                fix=f"give {Parameter('engine', 'ray')} too, or leave them out",
            )
        return None
    amounts, tpus = dict(resources or {}), None
    if tpu_slice:
        tpus = Slice(*parse_slice(tpu_slice, Parameter("slice")))
        amounts.setdefault("TPU", tpus.chips)
        workers = tpus.machines if workers is None else workers
    if workers is None:
        raise UserError(
            f"{Parameter('engine', 'ray')} needs the number of workers",
            where=_WHERE,
            fix=f"{Parameter('workers', '2')}, or {Parameter('workers', '2:8')} for two to eight",
        )
    least, most = (workers, workers) if isinstance(workers, int) else workers
    return Workers(least, most, amounts, tpus)


# ---- checks against the experiment and the cluster ----------------------------------------------


def refuse_uneven(experiment: schema.Experiment, workers: Workers) -> None:
    """Refuses a least number of workers that does not divide the batch.

    Raises:
        UserError: it does not.
    """
    fitting = fitting_workers(experiment, workers.devices, workers.least, workers.per_slice)
    if fitting == workers.least:
        return
    devices = count_text(workers.least * workers.devices, "device")
    raise UserError(
        f"a batch of {experiment.train.batch_size} cannot be split evenly over "
        f"{count_text(workers.least, 'worker')} with {devices}",
        where=_WHERE,
        fix=(f"{Parameter('workers', f'{fitting}')}, or " if fitting else "")
        + "another train.batch_size",
    )


def with_resources(workers: Workers, machines: list[dict[str, float]]) -> Workers:
    """Returns the workers with the resources that they have where none were given."""
    if workers.resources:
        return workers
    gpus = [machine["GPU"] for machine in machines if machine.get("GPU")]
    return replace(workers, resources={"GPU": int(min(gpus))} if gpus else {"CPU": 1})


def refuse_shortage(workers: Workers, machines: list[dict[str, float]]) -> None:
    """Refuses machines on which the least number of workers has no room.

    Raises:
        UserError: there is none, or Ray cannot place such a slice.
    """
    # Ray gives a worker on a slice a processor too.
    each = {"CPU": 1, **workers.resources} if workers.slice is not None else workers.resources
    room = sum(
        min(int(machine.get(name, 0) // amount) for name, amount in each.items())
        for machine in machines
    )
    if workers.slice is not None:
        room = min(room, _whole_slices(workers.slice) * workers.per_slice)
    if room >= workers.least:
        return
    raise UserError(
        f"the Ray cluster has room for {room} of {workers.describe()}",
        where=_WHERE,
        fix="`ray status` shows its resources; start more machines, or ask for less with "
        f"{Parameter('workers')}, {Parameter('resources')} and {Parameter('slice')}",
    )


def refuse_slice(tpus: Slice) -> None:
    """Refuses a slice that Ray cannot place, such as the single machine v3:2x2.

    Raises:
        UserError: Ray has none of these sides.
    """
    from ray._private.accelerators.tpu import TPUAcceleratorManager

    if not TPUAcceleratorManager.is_valid_tpu_accelerator_topology(tpus.generation, tpus.sides):
        raise UserError(
            f"Ray has no slice {tpus.name}",
            where=Parameter("slice"),
            fix=f"leave {Parameter('engine')} out, and start the command on each machine of the "
            "slice, see docs/launchers/tpu_pod_slice.md",
        )


def _whole_slices(tpus: Slice) -> int:
    """Returns how many slices of the cluster have all their machines."""
    from ray.util.tpu import get_num_tpu_slices

    return int(get_num_tpu_slices(tpus.sides, tpus.accelerator))


def with_replicas(experiment: schema.Experiment, workers: Workers) -> schema.Experiment:
    """Returns an experiment with steps that compute the same for any number of workers."""
    fixed = workers.least == workers.most or experiment.devices.replicas
    if fixed or not depends_on_replicas(experiment.model):
        return experiment
    most = fitting_workers(experiment, workers.devices, workers.most, workers.per_slice)
    replicas = most * workers.devices // experiment.devices.spatial_partitions
    say_aside(f"devices.replicas={replicas}, for a step to be the same with fewer workers")
    return replace(experiment, devices=replace(experiment.devices, replicas=replicas))
