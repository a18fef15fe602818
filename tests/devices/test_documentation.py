"""docs/devices.md and docs/launchers: their commands, variables and fields are valid."""

import dataclasses
import math
import re
import shlex
from pathlib import Path

import pytest
import yaml

from stillbox.cli.arguments import find_process_info
from stillbox.cli.main import build_parser, main
from stillbox.cli.overrides import changes_of
from stillbox.devices.chips import parse_gpus, parse_slice
from stillbox.devices.launcher import find_process
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "devices.md").read_text(encoding="utf-8")
LAUNCHERS = {
    name: (DOCS / "launchers" / name).read_text(encoding="utf-8")
    for name in (
        "one_gpu.md",
        "eight_gpus.md",
        "tpu_vm.md",
        "tpu_pod_slice.md",
        "slurm.md",
        "gke.md",
        "mpirun.md",
        "container.md",
        "jobset.md",
        "ray.md",
        "skypilot.md",
    )
}


def commands(page=PAGE):
    """Returns the words of every call of stillbox in a shell block, whoever makes it."""
    for block in re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.replace("$OMPI_COMM_WORLD_RANK", "15"), comments=True)
            # Some launchers take the command as one word.
            inner = next((word for word in words if word.startswith("stillbox ")), None)
            words = shlex.split(inner) if inner else words
            if "stillbox" in words:
                yield words[words.index("stillbox") + 1 :]


def understood(words):
    verb, *rest = words
    return build_parser().parse_args(["ssd_resnet34" if verb == "ssd.py" else verb, *rest])


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("one_gpu.md", 2),
        ("eight_gpus.md", 1),
        ("tpu_vm.md", 2),
        ("tpu_pod_slice.md", 1),
        ("slurm.md", 1),
        ("gke.md", 0),
        ("mpirun.md", 3),
        ("container.md", 1),
        ("jobset.md", 0),
        ("ray.md", 0),
        ("skypilot.md", 0),
    ],
)
def test_every_command_of_a_launcher_page_parses(page, count):
    parsed = list(commands(LAUNCHERS[page]))
    assert len(parsed) == count
    for words in parsed:
        understood(words)


@pytest.mark.parametrize("page", LAUNCHERS)
def test_commands_targets_and_fields_of_launcher_pages_exist(page):
    text = LAUNCHERS[page]
    for line in re.findall(r"`stillbox (check [^`]*)`", text):
        arguments = understood(shlex.split(line))
        assert parse_gpus(arguments.target) or parse_slice(arguments.target)
    overrides = re.findall(r"`--set ([^` ]+)`", text)
    assert resolve("retinanet", changes_of(overrides)).experiment
    assert "**Verified:**" in text and "verified:**" in text.split("**Verified:**")[1]


def test_devices_page_links_every_launcher_page():
    assert set(re.findall(r"launchers/(\w+\.md)", PAGE)) == set(LAUNCHERS)


def test_gke_manifest_has_a_pod_for_each_machine_of_the_slice():
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", LAUNCHERS["gke.md"], re.DOTALL | re.MULTILINE)
    service, job = yaml.safe_load_all(block)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    program, *words = container["command"]
    assert program == "stillbox"
    understood(words)
    topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    chips = math.prod(map(int, topology.split("x")))
    machines = chips // container["resources"]["limits"]["google.com/tpu"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == machines
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    (line,) = re.findall(r"`(--coordinator [^`]*)`", LAUNCHERS["gke.md"])
    flags = shlex.split(line.replace("$(JOB_COMPLETION_INDEX)", "3"))
    assert find_process_info(understood([*words, *flags])).index == 3


def test_processes_numbered_by_hand_make_a_job():
    places = [
        find_process_info(understood(words))
        for words in (*commands(), *commands(LAUNCHERS["mpirun.md"]))
        if "--coordinator" in words
    ]
    assert [(place.index, place.count) for place in places] == [(0, 2), (1, 2), (15, 16)]


def test_the_variables_of_gke_are_enough():
    names = re.findall(r"`(TPU_\w+)`", LAUNCHERS["gke.md"])
    assert find_process(dict(zip(names, ("1", "a,b"), strict=True))).index == 1


def test_every_field_is_documented_and_the_command_that_sets_one_works(capsys):
    fields = {field.name for field in dataclasses.fields(schema.Devices)}
    assert set(re.findall(r"^\| `devices\.(\w+)`", PAGE, re.MULTILINE)) == fields
    (words,) = (words for words in commands() if words[0] == "config")
    assert main(words) == 0
    assert "replicas: 8" in capsys.readouterr().out
