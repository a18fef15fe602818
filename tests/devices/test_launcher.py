"""The index of a process, from the variables of every launcher."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from stillbox.cli.arguments import find_process_info
from stillbox.cli.main import build_parser
from stillbox.devices.job import _own_devices
from stillbox.devices.launcher import ProcessInfo, find_process, first_host
from stillbox.errors import UserError
from stillbox.scaling.ray_scale import find_workers
from tests.helpers import refused

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
OPEN_MPI_4 = OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NODELIST": "gpu[012-014,020]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3",
}


def test_a_single_process_is_no_job():
    assert find_process({}) is None
    assert find_process({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}) is None
    assert find_process({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}) is None


def test_open_mpi_on_several_machines():
    place = find_process(OPEN_MPI_4)
    assert (place.index, place.count, place.local_index, place.local_count) == (5, 8, 1, 4)
    assert place.coordinator.startswith("10.96.0.1:")
    assert place.launcher == "Open MPI"


def test_open_mpi_on_one_machine_uses_its_loopback_address():
    assert find_process(
        OPEN_MPI_4 | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "5"}
    ).coordinator.startswith("127.0.0.1:")


def test_a_job_has_one_port_and_jobs_have_different_ones():
    def port(job):
        uri = f"{job}.0;tcp://10.96.0.1:34911"
        return find_process(OPEN_MPI_4 | {"OMPI_MCA_orte_hnp_uri": uri}).coordinator

    # Open MPI's numbers of jobs are multiples of 4,096.
    ports = {port(4096 * number) for number in range(1000, 1010)}
    assert len(ports) == 10
    assert port(4096 * 1000) == port(4096 * 1000)


def test_open_mpi_5_has_the_first_machine_in_the_name_of_the_job():
    place = find_process(OPEN_MPI | {"PMIX_NAMESPACE": "prterun-gpu-node1-31159@1"})
    assert place.coordinator.startswith("gpu-node1:")
    assert (place.index, place.count, place.local_index, place.local_count) == (5, 8, 1, 4)


@pytest.mark.parametrize("variables", [{}, {"PMIX_NAMESPACE": "slurm.pmix.31159.0"}])
def test_open_mpi_without_the_first_machine_needs_a_coordinator(variables):
    with pytest.raises(UserError, match=r"(?s)process 0 is.*coordinator=HOST:PORT"):
        find_process(OPEN_MPI | variables)


TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
"""As `torchrun --nnodes 2 --nproc-per-node 4` sets them."""
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
"""As Hydra sets them, the process manager of MPICH and Intel MPI."""
INTEL = {"I_MPI_HYDRA_UUID": "462d0000-ec7b-3a9b-6061-0600c30d420f", "I_MPI_INFO_NP": "1"}


def test_torchrun_and_a_job_of_kubeflow():
    place = find_process(TORCHRUN)
    assert (place.index, place.count, place.local_index, place.local_count) == (5, 8, 1, 4)
    host, _, port = place.coordinator.partition(":")
    # The server of torchrun has its own port.
    assert (host, place.launcher) == ("node1", "torchrun")
    assert port != "29500"
    kubeflow = {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    place = find_process(kubeflow)
    assert (place.index, place.count, place.local_count) == (5, 8, 1)
    for alone in ({"RANK": "0", "WORLD_SIZE": "1"}, {"WORLD_SIZE": "large"}, {"RANK": "captain"}):
        assert find_process(TORCHRUN | alone) is None


@pytest.mark.parametrize(("more", "launcher"), [({}, "MPICH"), (INTEL, "Intel MPI")])
def test_mpich_and_intel_mpi_on_one_machine(more, launcher):
    place = find_process(MPICH | more)
    assert (place.index, place.count, place.local_index, place.local_count) == (1, 2, 1, 2)
    assert place.coordinator.startswith("127.0.0.1:")
    assert place.launcher == launcher
    assert find_process({"PMI_RANK": "0", "PMI_SIZE": "1"} | more) is None


@pytest.mark.parametrize(
    ("variables", "message", "flags"),
    [
        (MPICH | {"PMI_SIZE": "4"}, "MPICH does not say on which machine", "process=$PMI_RANK"),
        (
            MPICH | INTEL | {"PMI_SIZE": "4"},
            "Intel MPI does not say on which machine",
            "coordinator=HOST:PORT",
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPICH does not say", "processes=N"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "without MASTER_ADDR", "process=$RANK"),
        ({"JOB_COMPLETION_INDEX": "0"}, "how many processes", "process=$(JOB_COMPLETION_INDEX)"),
        ({"JOB_COMPLETION_INDEX": "3"}, "how many processes", "processes=1"),
    ],
)
def test_processes_that_cannot_find_each_other_are_refused(variables, message, flags):
    with pytest.raises(UserError, match=message) as caught:
        find_process(variables)
    assert flags in caught.value.fix
    # The flags that the message names are taken.
    assert find_process(variables, coordinator="a:1", processes=4, process=1).index == 1
    assert find_process(variables, coordinator="a:1", processes=1, process=0) is None


def test_an_indexed_job_with_a_tpu_is_told_by_its_own_variables():
    job = {"JOB_COMPLETION_INDEX": "0", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    assert find_process(job) is None
    assert find_process(job | {"TPU_WORKER_HOSTNAMES": "a,b"}).count == 2


def test_slurm():
    place = find_process(SLURM)
    assert (place.index, place.count, place.local_index, place.local_count) == (6, 7, 0, 1)
    assert place.coordinator.startswith("gpu012:")
    assert find_process(SLURM | {"SLURM_NODEID": "1", "SLURM_PROCID": "3"}).local_count == 2


def test_the_batch_script_of_slurm_is_a_single_process():
    batch = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}
    assert find_process(batch) is None


@pytest.mark.parametrize(
    "nodes, first",
    [
        ("node1", "node1"),
        ("node1,other[3-4]", "node1"),
        ("node[001-0015],host2", "node001"),
        ("node[001,007-015]", "node001"),
        ("rack[0-1]node[02-03],other", "rack0node02"),
    ],
)
def test_the_first_machine_of_a_list(nodes, first):
    assert first_host(nodes) == first


_OF_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "SLURM_GPUS_PER_TASK")


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """The function from variables and a number of devices to the GPUs of process 1 of 2."""

    def gpus(variables, nodes=0):
        for name in (*_OF_GPUS, "JAX_PLATFORMS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for name in ("nvidiactl", *(f"nvidia{number}" for number in range(nodes))):
            (tmp_path / name).touch()
        place = ProcessInfo(1, 2, "node1:53000", local_index=1, local_count=2)
        return _own_devices(place, tmp_path)

    return gpus


def test_processes_of_a_machine_share_its_gpus(gpus):
    assert gpus({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}) == [2, 3]
    assert gpus({"HIP_VISIBLE_DEVICES": "4,5"}) == [1]
    assert gpus({}) == [1]
    assert gpus({}, 8) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    "variables",
    [
        {"CUDA_VISIBLE_DEVICES": "3"},
        {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "SLURM_GPUS_PER_TASK": "a100:4"},
        {"CUDA_VISIBLE_DEVICES": ""},
    ],
)
def test_gpus_that_a_launcher_has_divided_are_all_used(gpus, variables):
    assert gpus(variables, 3) is None


def test_gpus_of_tasks_that_slurm_does_not_bind_are_divided(gpus):
    assert gpus({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_GPUS_PER_TASK": "2"}) == [2, 3]


@pytest.mark.parametrize("variables", [{"CUDA_VISIBLE_DEVICES": "0,1,2"}, {}])
def test_gpus_that_would_be_left_over_are_refused(gpus, variables):
    with refused("CUDA_VISIBLE_DEVICES", 2, 3, "GPUs"):
        gpus(variables, 3)


def test_gpus_that_are_not_used_may_be_left_over(gpus):
    assert len(gpus({"JAX_PLATFORMS": "cpu"}, 3)) == 1


def test_machines_of_a_tpu_slice():
    place = find_process({"TPU_WORKER_HOSTNAMES": "a-0.a,a-1.a,a-2.a,a-3.a", "TPU_WORKER_ID": "2"})
    assert place == ProcessInfo(2, 4, "a-0.a:53000", launcher="GKE or Cloud TPU")


def test_the_command_line_outranks_the_environment():
    place = find_process(OPEN_MPI_4, coordinator="node1:9000", processes=2, process=1)
    assert place == ProcessInfo(1, 2, "node1:9000")
    assert find_process(OPEN_MPI_4, coordinator="node1:9000", processes=1, process=0) is None


@pytest.mark.parametrize(
    "said, message",
    [
        ({"processes": 2}, "needs all three"),
        ({"coordinator": "a:1", "processes": 2, "process": 2}, "no process 2 among 2"),
        ({"coordinator": "a", "processes": 2, "process": 0}, "no host with a port"),
        ({"coordinator": "a:70000", "processes": 2, "process": 0}, "no host with a port"),
    ],
)
def test_invalid_options_are_refused(said, message):
    with pytest.raises(UserError, match=message):
        find_process({}, **said)


# ---- The Dockerfile and the files of docs/launchers for Kubernetes, Ray and SkyPilot are valid ---


ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "launchers"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
VERSION = "1.34"

# jobset.x-k8s.io/v1alpha2, kueue.x-k8s.io/v1beta2 and ray.io/v1: what each object may hold.
FIELDS = {
    "JobSet": {
        *("coordinator", "failurePolicy", "managedBy", "network", "replicatedJobs"),
        *("startupPolicy", "successPolicy", "suspend", "ttlSecondsAfterFinished"),
    },
    "network": {"enableDNSHostnames", "publishNotReadyAddresses", "subdomain"},
    "failurePolicy": {"maxRestarts", "restartStrategy", "rules"},
    "replicatedJob": {"dependsOn", "groupName", "name", "replicas", "template"},
    "ResourceFlavor": {"nodeLabels", "nodeTaints", "tolerations", "topologyName"},
    "ClusterQueue": {
        *("admissionChecksStrategy", "admissionScope", "cohortName", "fairSharing"),
        *("flavorFungibility", "namespaceSelector", "preemption", "queueingStrategy"),
        *("resourceGroups", "stopPolicy"),
    },
    "LocalQueue": {"clusterQueue", "fairSharing", "stopPolicy"},
    "RayJob": {
        *("activeDeadlineSeconds", "backoffLimit", "clusterSelector", "deletionStrategy"),
        *("entrypoint", "entrypointNumCpus", "entrypointNumGpus", "entrypointResources", "jobId"),
        *("managedBy", "metadata", "rayClusterSpec", "runtimeEnvYAML", "shutdownAfterJobFinishes"),
        *("submissionMode", "submitterConfig", "submitterPodTemplate", "suspend"),
        "ttlSecondsAfterFinished",
    },
    "RayCluster": {
        *("autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions"),
        *("headGroupSpec", "headServiceAnnotations", "managedBy", "rayVersion", "suspend"),
        "workerGroupSpecs",
    },
    "headGroupSpec": {
        *("enableIngress", "headService", "labels", "rayStartParams", "resources"),
        *("serviceType", "template"),
    },
    "workerGroupSpec": {
        *("groupName", "idleTimeoutSeconds", "labels", "maxReplicas", "minReplicas", "numOfHosts"),
        *("rayStartParams", "replicas", "resources", "scaleStrategy", "suspend", "template"),
    },
}


def objects(page):
    """Returns the objects of Kubernetes on a page by kind."""
    text = (PAGES / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    documents = [document for block in blocks for document in yaml.safe_load_all(block)]
    return {document["kind"]: document for document in documents if "kind" in document}


def holds(kind, value):
    assert set(value) <= FIELDS[kind], kind


def pods(page):
    """Yields the pod templates on a page."""

    def search(value):
        if isinstance(value, dict):
            if "containers" in value.get("spec", {}):
                yield value
            value = list(value.values())
        for item in value if isinstance(value, list) else ():
            yield from search(item)

    yield from search(list(objects(page).values()))


@pytest.mark.parametrize(("page", "count"), [("gke.md", 1), ("jobset.md", 1), ("ray.md", 4)])
def test_pods_have_the_schema_of_kubernetes(page, count):
    validation = pytest.importorskip("kubernetes_validate")
    listed = list(pods(page))
    assert len(listed) == count
    for pod in listed:
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, **pod}
        validation.validate(whole, VERSION, strict=True)
        mounted = {
            mount["name"]
            for container in pod["spec"]["containers"]
            for mount in container["volumeMounts"]
        }
        assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}


def test_the_job_set_numbers_its_processes():
    jobset = objects("jobset.md")["JobSet"]
    spec, name = jobset["spec"], jobset["metadata"]["name"]
    holds("JobSet", spec)
    holds("network", spec["network"])
    holds("failurePolicy", spec["failurePolicy"])
    (workers,) = spec["replicatedJobs"]
    holds("replicatedJob", workers)
    job = workers["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    (variable,) = container["env"]
    _, *words = container["command"]
    place = find_process_info(
        build_parser().parse_args([word.replace(f"$({variable['name']})", "3") for word in words])
    )
    assert (place.index, place.count) == (3, job["completions"]) == (3, job["parallelism"])
    # JobSet's names of pods: SET-JOB-INDEX-POD.SUBDOMAIN.
    host = f"{name}-{workers['name']}-0-0.{spec['network']['subdomain']}"
    assert place.coordinator.partition(":")[0] == host


def test_the_queue_takes_the_job_set():
    jobset, by_kind = objects("jobset.md")["JobSet"], objects("jobset.md")
    for kind in ("ResourceFlavor", "ClusterQueue", "LocalQueue"):
        holds(kind, by_kind[kind]["spec"])
    queue = jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    assert by_kind["LocalQueue"]["metadata"]["name"] == queue
    assert (
        by_kind["LocalQueue"]["spec"]["clusterQueue"] == by_kind["ClusterQueue"]["metadata"]["name"]
    )
    (group,) = by_kind["ClusterQueue"]["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert flavor["name"] == by_kind["ResourceFlavor"]["metadata"]["name"]
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    (resource,) = container["resources"]["limits"]
    assert group["coveredResources"] == [resource] == [flavor["resources"][0]["name"]]
    needed = job["completions"] * int(container["resources"]["limits"][resource])
    assert flavor["resources"][0]["nominalQuota"] == 2 * needed
    selector = job["template"]["spec"]["nodeSelector"]
    assert selector == by_kind["ResourceFlavor"]["spec"]["nodeLabels"]


def test_the_ray_job_has_room_for_its_workers():
    job, cluster = objects("ray.md")["RayJob"], objects("ray.md")["RayCluster"]
    holds("RayJob", job["spec"])
    for spec in (job["spec"]["rayClusterSpec"], cluster["spec"]):
        holds("RayCluster", spec)
        holds("headGroupSpec", spec["headGroupSpec"])
        (group,) = spec["workerGroupSpecs"]
        holds("workerGroupSpec", group)
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        (needed,) = (
            requirement
            for requirement in extras["optional-dependencies"]["ray"]
            if "ray[" in requirement
        )
        assert f">={spec['rayVersion'].rpartition('.')[0]}," in needed
    program, *words = shlex.split(job["spec"]["entrypoint"])
    assert program == "stillbox"
    arguments = build_parser().parse_args(words)
    least, most = map(int, arguments.workers.split(":"))
    name, _, amount = arguments.resources[0].partition("=")
    assert find_workers(arguments.engine, (least, most), {name: float(amount)})
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (least, most) == (group["minReplicas"], group["maxReplicas"])
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == amount


def test_the_group_of_slices_has_the_machines_of_its_slice():
    text = (PAGES / "ray.md").read_text(encoding="utf-8")
    engine = shlex.split(re.search(r"^`(--workers .*--slice .*?)`", text, re.MULTILINE)[1])
    arguments = build_parser().parse_args(["train", "x", "--model-dir", "y", *engine])
    least, most = map(int, arguments.workers.split(":"))
    workers = find_workers("ray", (least, most), None, arguments.slice)
    (block,) = re.findall(r"^```yaml\n(- groupName.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (group,) = yaml.safe_load(block)
    holds("workerGroupSpec", group)
    assert group["numOfHosts"] == workers.per_slice
    assert group["minReplicas"] * group["numOfHosts"] == least
    assert group["maxReplicas"] * group["numOfHosts"] == most
    pod = group["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == workers.slice.sides
    limits = pod["containers"][0]["resources"]["limits"]
    assert int(limits["google.com/tpu"]) == workers.resources["TPU"]


def task():
    text = (PAGES / "skypilot.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return yaml.safe_load(block)


def test_the_task_has_the_schema_of_skypilot():
    schemas = pytest.importorskip("sky.utils.schemas")
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(task(), schemas.get_task_schema())


def test_the_task_of_skypilot_numbers_its_processes(tmp_path):
    (tmp_path / "stillbox").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "stillbox").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8\n10.0.0.9\n10.0.0.10",
        "SKYPILOT_NUM_NODES": "4",
        "SKYPILOT_NODE_RANK": "2",
    }
    words = subprocess.run(
        ["bash", "-c", task()["run"]], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    place = find_process_info(build_parser().parse_args(words))
    assert (place.index, place.count, place.coordinator) == (
        2,
        task()["num_nodes"],
        "10.0.0.7:53000",
    )


def test_the_dockerfile_installs_extras_that_exist(tmp_path):
    """Runs the shell of its RUN with a Python that writes down what it is to install."""
    (script,) = re.findall(r"^RUN (set -eu;.*?[^\\])$", DOCKERFILE, re.DOTALL | re.MULTILINE)
    script = script.replace("\\\n", "").replace("/opt/stillbox/bin/", f"{tmp_path}/")
    for name in ("python", "uv"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$@"\n')
        (tmp_path / name).chmod(0o755)
    shutil.copy(ROOT / "constraints.txt", tmp_path)

    def installed(variant, extras):
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "VARIANT": variant, "EXTRAS": extras}
        done = subprocess.run(
            ["sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout.split()[-2:], done.stderr

    assert installed("cpu", "")[:2] == (0, [".", "./packages/legacy"])
    assert installed("cpu", "ray")[:2] == (0, [".[ray]", "./packages/legacy"])
    assert installed("tpu", "")[:2] == (0, [".[tpu]", "./packages/legacy"])
    assert installed("cuda", "ray,serve")[:2] == (0, [".[cuda,ray,serve]", "./packages/legacy"])
    code, _, said = installed("rocm", "")
    assert code == 1 and "VARIANT is cpu, cuda or tpu, not rocm" in said
    assert re.match(r"uv==[\d.]+ .*\n +--hash=", (tmp_path / "uv.txt").read_text())


def test_the_build_has_every_file_that_the_dockerfile_copies():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert {name for line in copied for name in line.split()} == allowed
    assert all((ROOT / name).exists() for name in allowed)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= allowed


def test_the_image_has_what_the_probes_of_kuberay_call():
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    installed = last.index("apt-get install --yes --no-install-recommends wget")
    # Later it would lack the rights.
    assert installed < last.index("USER 1000")


def test_the_page_of_containers_names_the_versions_of_jax():
    page = (PAGES / "container.md").read_text(encoding="utf-8")
    locked = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    versions = set(re.findall(r"^jax==([\d.]+)", locked, re.MULTILINE))
    assert set(re.findall(r"jax ([\d.]+\d)", page)) == versions


def test_the_page_of_containers_has_the_arguments_of_the_dockerfile():
    page = (PAGES / "container.md").read_text(encoding="utf-8")
    arguments = re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE)
    assert set(re.findall(r"^\| `([A-Z]+)`", page, re.MULTILINE)) == set(arguments)
