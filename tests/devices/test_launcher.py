"""The index of a process, from the variables of every launcher."""

import pytest

from stillbox.devices.launcher import ProcessInfo, find_process, first_host
from stillbox.errors import UserError

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
    with pytest.raises(UserError, match=r"(?s)process 0 is.*--coordinator HOST:PORT"):
        find_process(OPEN_MPI | variables)


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
    ],
)
def test_the_first_machine_of_a_list(nodes, first):
    assert first_host(nodes) == first


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
