"""What does not fit into memory is known without allocating it, with the field to lower."""

import math
import re
import resource

import pytest

from stillbox.checking.memory_estimate import estimate, sizes_of
from stillbox.checking.memory_verdict import (
    LARGEST,
    Machine,
    find_shortage,
    memory_advice,
    refuse_shortage,
    this_machine,
)
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment.resolve import read_config
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.references import worded
from tests.small import SMALL

GIB = 2**30
LAPTOP = Machine("a laptop", "cpu", 8 * GIB, 8 * GIB)
RECORDS = ("data.train.paths=t.record", "data.evaluation.paths=e.record")


def small(*overrides):
    return read_config("demo_scenes", changes_of([*SMALL, *RECORDS, *overrides])).experiment


def test_a_small_run_fits():
    assert find_shortage(small(), LAPTOP) is None
    assert not list(memory_advice(small()))


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("train.batch_size=1000000000", "train.batch_size"),
        ("evaluation.batch_size=1000000000", "evaluation.batch_size"),
        ("data.prefetch=1000000000", "data.prefetch"),
        ("data.train.max_boxes=1000000000", "data.train.max_boxes"),
        ("model.num_classes=1000000000", "model.num_classes"),
        ("model.resizer={kind: fixed_shape, height: 100000, width: 100000}", "model.resizer"),
    ],
)
def test_an_absurd_number_is_refused_with_the_largest_that_fits(override, field):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError) as caught:
        refuse_shortage(small(override), LAPTOP, {field: f"{override}"})
    assert caught.value.where == override
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # 256 MiB, in KiB
    # What is recommended does fit, and twice as much is not certain to.
    fix = worded(caught.value.fix)
    if field == "model.resizer":
        side = int(fix.removeprefix("an input of ").split()[0])
        fitting, double = (
            f"model.resizer={{kind: fixed_shape, height: {n}, width: {n}}}"
            for n in (side, side * 2)
        )
    else:
        fitting = re.search(r"[\w.]+=\S+?(?=,|$)", fix)[0]
        double = f"{field}={2 * int(fitting.split('=')[1])}"
    assert find_shortage(small(fitting), LAPTOP) is None
    assert find_shortage(small(double), LAPTOP) is not None


def test_a_batch_beyond_every_machine_is_an_error_of_the_config():
    experiment = small("train.batch_size=1000000000")
    for finding in (*memory_advice(experiment), find_shortage(experiment, LARGEST)):
        assert (finding.severity, finding.path) == ("error", "train.batch_size")
    assert len(list(memory_advice(experiment))) == 1


@pytest.mark.parametrize("field", ["train.batch_size", "evaluation.batch_size"])
@pytest.mark.parametrize("chips", [8, 48])
def test_advice_about_a_target_is_of_its_memory_and_its_chips_divide_it(field, chips):
    target = Machine("a slice", "tpu", GIB / 4, math.inf, chips)
    (finding,) = memory_advice(small(f"{field}=1000000"), target)
    assert (finding.severity, finding.path) == ("warning", field)
    assert f"for each of {chips} devices; a slice has 256 MiB" in finding.what
    # The compiler of the target says later whether the batch fits.
    assert "this machine" not in finding.what and "refuses it here" not in finding.what
    value = int(worded(finding.fix).split(f"{field}=")[1].split(",")[0])
    assert value > 0 and value % chips == 0
    assert not list(memory_advice(small(f"{field}={value}"), target))


def test_what_may_not_fit_is_said_and_not_refused():
    sizes = sizes_of(small().model, small().train)
    device = estimate(small(), sizes, "cpu")
    total = device.device + device.host
    between = (total.low + total.high) / 2
    shortage = refuse_shortage(small(), Machine("a toy", "cpu", between, between), {})
    assert shortage.severity == "warning"
    assert "may need up to" in shortage.what


def test_bfloat16_saves_activations_on_accelerators_alone():
    float32, bfloat16 = (
        {
            platform: estimate(experiment, sizes, platform).activations.high
            for platform in ("cpu", "gpu")
        }
        for experiment in (small("train.precision=float32"), small("train.precision=bfloat16"))
        for sizes in (sizes_of(experiment.model, experiment.train),)
    )
    assert bfloat16["gpu"] < float32["gpu"]
    assert bfloat16["cpu"] >= float32["cpu"]


def test_rematerialised_blocks_need_less():
    plain, blocks = (
        estimate(experiment, sizes_of(experiment.model, experiment.train), "gpu").activations.high
        for experiment in (small(), small("train.rematerialization=blocks"))
    )
    assert blocks < 0.8 * plain


def test_parts_of_a_batch_are_recommended_beside_a_smaller_one():
    batch, field = "train.batch_size=8000", "train.accumulation_steps="
    number = int(worded(find_shortage(small(batch), LAPTOP).fix).rpartition(field)[2].split(",")[0])
    fewer = max(divisor for divisor in range(1, number) if 8000 % divisor == 0)
    assert find_shortage(small(batch, f"{field}{number}"), LAPTOP) is None
    assert find_shortage(small(batch, f"{field}{fewer}"), LAPTOP) is not None


def test_the_largest_input_of_training_decides():
    alone = small("train.batch_size=64")
    several = small("train.batch_size=64", "train.input_sizes=[64, 1024]")
    assert find_shortage(alone, LAPTOP) is None
    assert find_shortage(several, LAPTOP) is not None
    only = small("train.batch_size=64", "train.input_sizes=[1024]")
    assert find_shortage(only, LAPTOP) == find_shortage(several, LAPTOP)


def test_an_accelerator_and_its_host_are_compared_apart():
    experiment = small("train.batch_size=4096")
    device, host = 64 * GIB, 0.1 * GIB
    assert find_shortage(experiment, Machine("a host", "gpu", device, host)) is not None
    assert find_shortage(experiment, Machine("a GPU", "gpu", device, device)) is None
    # More devices share a batch.
    tight = Machine("a GPU", "gpu", GIB, device)
    assert find_shortage(experiment, tight) is not None
    assert find_shortage(experiment, Machine("GPUs", "gpu", GIB, device, devices=64)) is None


def test_parameters_are_counted_exactly_without_drawing_them():
    experiment = small()
    _, params, stats = split_detector(build_detector(experiment.model))
    exact = sum(array.nbytes for array in [*params.values(), *stats.values()])
    sizes = sizes_of(experiment.model, experiment.train)
    assert sizes.parameters == exact
    assert sizes.average == sum(array.nbytes for array in params.values())


def test_many_classes_are_extrapolated_without_error():
    model = small("model.num_classes=500").model
    traced, line = (sizes_of(model, small().train, extrapolate=far) for far in (False, True))
    assert line.parameters == pytest.approx(traced.parameters)
    assert line.activations == pytest.approx(traced.activations, rel=1e-3)


@pytest.mark.parametrize(
    ("overrides", "whole"),
    [
        ([], 8),
        (["devices.spatial_partitions=2"], 4),
        (["train.accumulation_steps=2", "devices.replicas=3"], 48),
    ],
)
def test_the_recommended_batch_can_be_divided(overrides, whole):
    gpus = Machine("GPUs", "gpu", GIB / 4, 8 * GIB, devices=8)
    fix = worded(find_shortage(small("train.batch_size=9600", *overrides), gpus).fix)
    batch = int(fix.split("train.batch_size=")[1].split(",")[0])
    assert batch % whole == 0
    assert find_shortage(small(f"train.batch_size={batch}", *overrides), gpus) is None
    assert find_shortage(small(f"train.batch_size={batch + whole}", *overrides), gpus) is not None


def test_processes_divide_batch_and_memory_of_a_machine_among_them(monkeypatch):
    places = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "0"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("jax.device_count", lambda: 6)
    monkeypatch.setattr("jax.process_count", lambda: 3)
    monkeypatch.setattr("stillbox.checking.memory_verdict.total_memory", lambda: 24 * GIB)
    machine = this_machine()
    assert machine == Machine("1/3 of this machine", "cpu", 8 * GIB, 8 * GIB, 6, 3)
    said = find_shortage(small("train.batch_size=60000"), machine).what
    assert " for each of 3 processes; 1/3 of this machine has 8.00 GiB" in said
    # Devices of a process share its memory.
    alone, devices = Machine("a", "cpu", GIB, GIB), Machine("a", "cpu", GIB, GIB, devices=8)
    crowded = small("train.batch_size=4096")
    assert find_shortage(crowded, devices).what == find_shortage(crowded, alone).what
