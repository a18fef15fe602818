"""Names of targets, refusals without a compiler or a device, and the page about targets."""

import math
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from stillbox.checking.ahead_of_time import targets
from stillbox.checking.ahead_of_time.targets import find_target
from stillbox.cli.main import build_parser
from stillbox.devices import chips
from stillbox.devices.chips import CHIPS, GPUS, parse_gpus, parse_slice
from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve
from stillbox.extras import install_command
from stillbox.references import Parameter
from tests.checking.ahead_of_time.programs import needs_cuda_plugin, needs_libtpu
from tests.helpers import refused


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("v5e:2x4", "v5e:2x4"),
        ("V5E:2X4", "v5e:2x4"),
        ("tpu-v5e:2x2", "v5e:2x2"),
        # Accelerator types of v5e and v6e count chips,
        ("v5litepod-8", "v5e:2x4"),
        ("v5litepod-128", "v5e:8x16"),
        ("v6e-1", "v6e:1x1"),
        ("trillium-16", "v6e:4x4"),
        # the others cores, two on each chip.
        ("v2-8", "v2:2x2"),
        ("v3-32", "v3:4x4"),
        ("v4-8", "v4:2x2x1"),
        ("v5p-256", "v5p:4x4x8"),
    ],
)
def test_spellings_of_slices(name, meant):
    chip, sides = parse_slice(name)
    assert f"{chip.generation}:{sides}" == meant


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v5e:3x3", "one of v5e:1x1, v5e:2x2"),
        ("v5e", "one of v5e:1x1, v5e:2x2"),
        ("v3-7", "one of v3:2x2"),
        ("v5f:2x4", "did you mean"),
        ("cudda", "did you mean 'cuda'"),
        ("v7:2x4", "did you mean"),
        ("some chips", "TPU v2, v3, v4, v5e, v5p, v6e as"),
        ("h20", "did you mean 'h200'"),
    ],
)
def test_invalid_names_are_refused_with_valid_ones(name, said):
    with pytest.raises(UserError) as refusal:
        parse_slice(name)
    assert refusal.value.about == Parameter("target")
    assert said in refusal.value.fix


def test_slices_reach_128_chips():
    for chip in CHIPS.values():
        sizes = [math.prod(map(int, sides.split("x"))) for sides in chip.slices]
        assert sizes == sorted(sizes)
        assert sizes[-1] == 128


def test_without_the_compiler_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with refused(Parameter("target")):
        find_target("v5e:2x2")


def test_local_devices_are_a_target_where_they_are_present(monkeypatch):
    target = find_target("cpu")
    assert target.describe() == "cpu, 1 device (cpu)"
    assert target.usable_bytes > 2**30
    monkeypatch.setattr(targets, "_devices_here", lambda platform: ())
    with refused(Parameter("target")):
        find_target("cuda")


@pytest.mark.parametrize(
    ("name", "meant"), [("h200", ("h200", 1)), ("H100:8", ("h100", 8)), ("a100:2", ("a100", 2))]
)
def test_gpus_are_named_by_model_and_number(name, meant):
    gpu, number = parse_gpus(name)
    assert (gpu.name, number) == meant


def test_gpus_have_a_usual_number_and_the_memory_that_the_environment_grants(monkeypatch):
    assert parse_gpus("v5e:2x4") is None
    with refused(Parameter("target")) as refusal:
        parse_gpus("h200:3")
    assert refusal.value.fix == "one of h200:1, h200:2, h200:4, h200:8"
    gpu, _ = parse_gpus("h200")
    assert gpu.usable_bytes == 0.75 * 151_397_597_184
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".5")
    assert gpu.usable_bytes == 0.5 * 151_397_597_184


def test_without_the_plugin_for_gpus_the_extra_is_named(monkeypatch):
    def absent(**_):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(chips.topologies, "get_topology_desc", absent)
    with refused(Parameter("target")) as refusal:
        find_target("h200")
    assert install_command("cuda") in refusal.value.fix


@needs_cuda_plugin
@pytest.mark.parametrize("name", GPUS)
def test_the_compiler_accepts_every_gpu(name):
    target = find_target(f"{name}:8")
    assert len(target.devices) == 8
    assert target.describe() == f"{name}:8, 8 GPUs ({GPUS[name].product})"


@needs_libtpu
def test_the_compiler_describes_every_slice():
    for chip in CHIPS.values():
        for sides in chip.slices:
            target = find_target(f"{chip.generation}:{sides}")
            chips = math.prod(map(int, sides.split("x")))
            assert len(target.devices) == chips * chip.devices, target.name


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "accelerators.md").read_text()
COMMANDS = re.findall(r"^(?:\$ )?(stillbox .*)$", PAGE, re.MULTILINE)


# Minutes of compilation each: what runs here is everything up to the compiler.
@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_names_a_config_and_a_slice(line):
    arguments = build_parser().parse_args(shlex.split(line)[1:])
    assert resolve(arguments.config, arguments.overrides).experiment
    assert parse_gpus(arguments.target) or parse_slice(arguments.target)


def test_there_are_commands():
    assert len(COMMANDS) >= 2


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_the_table_has_the_figures_of_tpus(chip):
    name = chip.generation
    (row,) = re.findall(rf"^\| `{name}:.*$", PAGE, re.MULTILINE)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert f"`{name}:{chip.slices[0]}` ... `{name}:{chip.slices[-1]}`" in cells[0]
    alias = cells[0].rpartition("`, `")[2].strip("`")
    assert parse_slice(alias)[0] is chip
    unit, factor = ("GiB", 2**30) if chip.hbm_bytes % 2**30 == 0 else ("GB", 1e9)
    assert cells[1:] == [
        f"{chip.devices} a chip",
        f"{chip.flops / 1e12:.0f} TFLOP/s",
        f"{chip.hbm_bytes / factor:.0f} {unit}",
        f"{chip.hbm_bandwidth / 1e9:,.0f} GB/s",
        f"{chip.link_bandwidth / 1e9:,.0f} GB/s",
    ]


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_the_table_has_the_figures_of_gpus(gpu):
    (row,) = re.findall(rf"^\| `{gpu.name}`, .*$", PAGE, re.MULTILINE)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        f"`{gpu.name}`, `{gpu.name}:8`",
        "1 a GPU",
        f"{gpu.flops / 1e12:,.0f} TFLOP/s",
        f"{gpu.hbm_bytes / 1e9:.0f} GB",
        f"{gpu.hbm_bandwidth / 1e9:,.0f} GB/s",
        f"{gpu.link_bandwidth / 1e9:,.0f} GB/s",
    ]


def test_a_target_has_the_memory_of_its_devices():
    device = SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")
    machine = targets.Target("v5e:2x4", (device,) * 8, 15.0 * 2**30).machine
    assert (machine.platform, machine.device_bytes, machine.devices) == ("tpu", 15.0 * 2**30, 8)
    device = SimpleNamespace(platform="gpu", device_kind="H200")
    assert targets.Target("h200:2", (device,) * 2, 9.0).machine.platform == "gpu"
    # A CPU is this machine.
    assert find_target("cpu").machine is None
