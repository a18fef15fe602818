"""Workers of a Ray cluster, without Ray: numbers, refusals, what ends a run, a worker."""

import importlib.util
import os
import pickle
import socket
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from stillbox.api import train
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.remote_directory import ModelPlace
from stillbox.cli.main import main
from stillbox.devices.job import JoinError
from stillbox.errors import UserError
from stillbox.experiment.yaml_config import from_yaml, to_yaml
from stillbox.references import Parameter
from stillbox.scaling import ray_cluster, ray_data, ray_scale, ray_worker
from stillbox.scaling.ray_scale import Workers, find_workers
from stillbox.scaling.ray_train import Failures, train_on_ray
from stillbox.scaling.ray_worker import Work, fitting_workers
from tests.helpers import read_json, refused
from tests.small import small_overrides


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--workers", "2"], "--workers, --resources and --slice belong to --engine ray"),
        (["--resources", "GPU=8"], "--workers, --resources and --slice belong to --engine ray"),
        (["--engine", "ray"], "--engine ray needs the number of workers"),
        (["--engine", "ray", "--workers", "2:8:9"], "'2:8:9' is no number of workers"),
        (["--engine", "ray", "--workers", "two"], "'two' is no number of workers"),
        (["--engine", "ray", "--workers", "0"], "there are no 0 to 0 workers"),
        (["--engine", "ray", "--workers", "8:2"], "there are no 8 to 2 workers"),
        (["--engine", "ray", "--workers", "2", "--resources", "GPU"], "'GPU' is no resource"),
        (["--engine", "ray", "--workers", "2", "--resources", "GPU=nan"], "'GPU=nan' is no res"),
        (["--engine", "ray", "--workers", "2", "--resources", "GPU=0.5"], "cannot have 0.5 of GPU"),
        (["--engine", "ray", "--workers", "2", "--resources", "TPU=4"], "TPUs come in slices"),
        (["--slice", "v6e:4x4"], "--workers, --resources and --slice belong to --engine ray"),
        (["--engine", "ray", "--slice", "v6e:3x3"], "'v6e:3x3' is no usual slice of TPU v6e"),
        (["--engine", "ray", "--slice", "h200:8"], "'h200:8' is no slice of TPUs"),
        (
            ["--engine", "ray", "--slice", "v6e:4x4", "--workers", "6"],
            "a slice v6e:4x4 has 4 machines, each with a worker",
        ),
        (
            ["--engine", "ray", "--slice", "v6e:4x4", "--resources", "TPU=1"],
            "a worker has all 4 chips of its machine, and no GPU",
        ),
        (
            ["--engine", "ray", "--slice", "v6e:4x4"],
            "a batch of 4 cannot be split evenly over 4 workers with 16 devices",
        ),
        (["--engine", "ray", "--workers", "3"], "a batch of 4 cannot be split evenly over 3"),
        (["--engine", "ray", "--workers", "3:4"], "a batch of 4 cannot be split evenly over 3"),
        (
            ["--engine", "ray", "--workers", "2", "--resources", "GPU=4"],
            "a batch of 4 cannot be split evenly over 2 workers with 8 devices",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(flags, sentence, scenes, tmp_path, capsys):
    directory = tmp_path / "run"
    words = [word for change in small_overrides(scenes) for word in ("--set", change)]
    code = main(["train", "demo_scenes", "--model-dir", str(directory), *words, *flags])
    said = capsys.readouterr().err
    assert code == 2
    assert sentence in said and "\n  fix: " in said
    assert not directory.exists()


def test_an_engine_of_another_name_is_refused(experiment, tmp_path):
    with refused(Parameter("engine"), "spark"):
        train(experiment(), tmp_path / "run", engine="spark", workers=2)


def test_the_numbers_of_the_command_line_and_of_python_are_the_same():
    assert find_workers("local", None, None) is None
    assert find_workers("ray", 2, None) == Workers(2, 2)
    workers = find_workers("ray", (2, 8), {"GPU": 8})
    assert (workers.least, workers.most, workers.devices) == (2, 8, 8)
    assert workers.describe() == "2 to 8 workers with GPU=8 each"


def test_a_slice_has_a_worker_on_each_of_its_machines():
    workers = find_workers("ray", None, None, "v5litepod-16")
    assert (workers.least, workers.most, workers.devices, workers.platform) == (4, 4, 4, "tpu")
    assert workers.describe() == "4 workers, machines of v5e:4x4, with TPU=4 each"
    assert workers.scaling() == {
        "num_workers": 4,
        "use_gpu": False,
        "use_tpu": True,
        "resources_per_worker": {"TPU": 4},
        "topology": "4x4",
        "accelerator_type": "TPU-V5LITEPOD",
    }
    two = find_workers("ray", (4, 8), {"CPU": 100}, "v6e:4x4")
    assert two.scaling()["num_workers"] == (4, 8)
    assert two.resources == {"CPU": 100, "TPU": 4}
    # Two cores of a chip are two devices of JAX.
    assert find_workers("ray", None, None, "v3-32").devices == 8
    whole = find_workers("ray", 2, None, "v6e:2x4")
    assert (whole.per_slice, whole.devices) == (1, 8)


def test_gpus_that_only_the_cluster_knows_may_share_an_image(experiment, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.train", None)
    shared = experiment("devices.spatial_partitions=2")
    for resources, words in (({}, "is not installed"), ({"CPU": 1}, "cannot be split evenly")):
        with pytest.raises(UserError, match=words):
            train_on_ray(print, shared, tmp_path / "run", Workers(1, 1, resources))


def test_a_cluster_without_a_machine_yet_detects_by_one_worker(monkeypatch):
    sizes = []
    data = SimpleNamespace(ActorPoolStrategy=lambda size: sizes.append(size))
    ray = SimpleNamespace(cluster_resources=dict, nodes=list, put=id, data=data)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_data, "outcomes", lambda work, parts, **options: parts)
    predictor = SimpleNamespace(batch_size=2)
    # Full batches: two images and one.
    assert len(ray_data._run(predictor, [None] * 3, None, None, 0, {})) == 2
    assert sizes == [1]


def test_ray_and_its_cluster_are_looked_for_before_anything_starts(
    experiment, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.train", None)
    with pytest.raises(UserError, match=r"ray.* is not installed") as caught:
        train_on_ray(print, experiment(), tmp_path / "run", Workers(2, 2))
    assert "[ray]" in caught.value.fix
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
        # Bound, but not listening.
        with refused("RAY_ADDRESS", 127), ray_cluster.connected():
            pass
    assert not (tmp_path / "run").exists()


def test_the_room_of_a_cluster_is_that_of_its_machines():
    machines = [{"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0}]
    chosen = ray_scale.with_resources(Workers(3, 3), machines)
    assert chosen.resources == {"GPU": 2}
    ray_scale.refuse_shortage(chosen, machines)
    assert ray_scale.with_resources(Workers(3, 3), machines[2:]).resources == {"CPU": 1}
    # Six GPUs, but never four and two of one machine.
    with refused(Parameter("workers"), 1, 2, "GPU=3"):
        ray_scale.refuse_shortage(Workers(2, 2, {"GPU": 3}), machines)


@pytest.mark.parametrize(
    ("overrides", "devices", "most", "count"),
    [
        (["train.batch_size=12"], 1, 8, 6),
        (["train.batch_size=12"], 1, 3, 3),
        (["train.batch_size=12", "train.accumulation_steps=2"], 1, 8, 6),
        (["train.batch_size=12", "train.accumulation_steps=3"], 1, 8, 4),
        (["train.batch_size=16"], 8, 8, 2),
        (["train.batch_size=4", "devices.spatial_partitions=2"], 2, 3, 2),
        (["train.batch_size=4"], 8, 3, 0),
    ],
)
def test_as_many_workers_train_as_divide_the_batch(experiment, overrides, devices, most, count):
    assert fitting_workers(experiment(*overrides), devices, most) == count


def test_slices_train_as_a_whole_or_wait(experiment):
    batch = experiment("train.batch_size=48")
    assert fitting_workers(batch, 4, 8, per_slice=4) == 4  # not 6
    assert fitting_workers(batch, 4, 7, per_slice=4) == 4
    assert fitting_workers(batch, 4, 3, per_slice=4) == 0


def test_a_step_is_the_same_for_any_number_of_elastic_workers(experiment):
    per_replica = "model.backbone.conv.batch_norm.statistics=per_replica"
    trained = experiment("train.batch_size=12", per_replica)
    assert ray_scale.with_replicas(trained, Workers(2, 8)).devices.replicas == 6
    assert ray_scale.with_replicas(trained, Workers(2, 2)).devices.replicas == 0
    same = experiment("train.batch_size=12")
    assert ray_scale.with_replicas(same, Workers(2, 8)).devices.replicas == 0
    given = experiment("train.batch_size=12", "devices.replicas=2", per_replica)
    assert ray_scale.with_replicas(given, Workers(2, 8)).devices.replicas == 2


@pytest.fixture
def directory(tmp_path):
    with_one = ModelDirectory.create(tmp_path / "run", experiment="x: 1", label_map="", versions={})
    with_one.save(2, {}, {})
    return with_one


def test_errors_of_users_end_a_run_and_lost_workers_do_not(directory, capsys):
    failures = Failures(ModelPlace(directory.path))
    lost = {0: JoinError("process 0 of 2 cannot join the others"), 1: RuntimeError("died")}
    failures.after_exception(None, lost)
    assert "worker 1: RuntimeError: died; training goes on from step 2" in capsys.readouterr().err
    full = UserError("the disk is full", where="here", fix="make room")
    with refused("here"):
        failures.after_exception(None, {0: full, 1: RuntimeError("Gloo")})
    with pytest.raises(FloatingPointError):
        failures.after_exception(None, {0: FloatingPointError("the loss is nan")})
    # As it arrives from another process.
    assert pickle.loads(pickle.dumps(full)).fix == "make room"


def test_failures_without_progress_end_a_run(directory):
    failures = Failures(ModelPlace(directory.path))
    lost = {1: RuntimeError("died")}
    for step in (4, 6, 8):  # a new checkpoint before each
        directory.save(step, {}, {})
        failures.after_exception(None, lost)
    failures.after_exception(None, lost)
    with pytest.raises(UserError, match="failed 3 times without a new checkpoint; worker 1: Run"):
        failures.after_exception(None, lost)


class Ray:
    """Stands for Ray in one worker; `told` is what the first worker announces to it."""

    def __init__(self, rank, count, told=(), labels=None, nodes=()):
        self.rank, self.count, self.told = rank, count, list(told)
        self.labels, self.nodes = labels or {}, nodes
        self.reports, self.announced = [], []

    def modules(self):
        train, collective = ModuleType("ray.train"), ModuleType("ray.train.collective")
        context = SimpleNamespace(
            get_world_rank=lambda: self.rank, get_world_size=lambda: self.count
        )
        train.get_context = lambda: context
        train.Checkpoint = SimpleNamespace(
            from_directory=lambda folder: read_json(Path(folder) / "checkpoint.json")
        )
        train.report = lambda metrics, checkpoint=None: self.reports.append((metrics, checkpoint))
        collective.broadcast_from_rank_zero = self.broadcast
        ray = ModuleType("ray")
        ray.train, train.collective = train, collective
        ray.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")
        ray.get_runtime_context = lambda: SimpleNamespace(get_node_labels=lambda: self.labels)
        ray.nodes = lambda: self.nodes
        tpu = ModuleType("ray.util.tpu")
        tpu.get_tpu_coordinator_env_vars = lambda **facts: {
            f"MEGASCALE_{name.upper()}": str(value) for name, value in facts.items()
        }
        return {
            "ray": ray,
            "ray.train": train,
            "ray.train.collective": collective,
            "ray.util.tpu": tpu,
        }

    def broadcast(self, value):
        self.announced.append(value)
        return self.told.pop(0) if self.rank else value


@pytest.fixture
def work(experiment, directory, tmp_path, monkeypatch):
    """Runs a worker beside a `Ray` that stands for it; returns what it joined and trained."""
    seen = SimpleNamespace(jobs=[], trained=[])

    def learn(experiment, directory, *, loggers, origins):
        seen.trained.append((experiment.train.batch_size, directory, origins))
        loggers[0].metrics({"loss": 3.0}, 2)
        loggers[0].metrics({"loss": 2.0}, 4)
        loggers[0].evaluation({"AP": 0.5}, {}, 4)
        (directory.folder / "checkpoints").mkdir(exist_ok=True)
        for name in ("experiment.yaml", "label_map.pbtxt", "versions.json"):
            (directory.folder / name).touch()
        ModelDirectory(directory.folder).save(4, {}, {})
        return "an outcome"

    def run(ray, *overrides, directory=str(directory.path), platform="cpu", per_slice=1):
        for name, module in ray.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(ray_worker, "join_job", seen.jobs.append)
        monkeypatch.setattr(ray_worker, "prepare_process", lambda: None)
        text = to_yaml(experiment(*overrides))
        assert from_yaml(text) == experiment(*overrides)
        work = Work(
            train=learn,
            experiment=text,
            imports=(),
            directory=directory,
            arguments={"origins": {}},
            devices=1,
            platform=platform,
            per_slice=per_slice,
            folder=tmp_path,
        )
        return work.run(), seen

    return run


def test_a_worker_joins_as_any_process_and_reports_the_newest(work, directory):
    ray = Ray(0, 2)
    ended, seen = work(ray)
    assert ended == "an outcome"
    (info,) = seen.jobs
    assert (info.index, info.count, info.launcher) == (0, 2, "Ray")
    assert info.coordinator.startswith("10.0.0.1:")
    assert seen.trained == [(4, ModelPlace(directory.path), {})]
    checkpoint = {"step": 4, "path": str(directory.path / "checkpoints" / "4")}
    assert ray.reports == [({"loss": 2.0, "evaluation/AP": 0.5, "step": 4}, checkpoint)]
    assert ray.announced[1:] == ["report", "end"]


def test_a_storage_that_fails_for_a_moment_leaves_no_worker_waiting(work, monkeypatch):
    def newest(place, left=[2]):  # noqa: B006 - at the start it answers
        if not left:
            raise UserError("the storage fails")
        return left.pop()

    monkeypatch.setattr(ModelPlace, "newest_step", newest)
    ray = Ray(0, 2)
    work(ray)
    assert ray.reports == [({"loss": 2.0, "evaluation/AP": 0.5, "step": 4}, None)]
    assert ray.announced[1:] == ["report", "end"]


def test_the_other_workers_report_as_often_and_one_too_many_does_not_train(work):
    second = Ray(1, 3, ["10.0.0.1:9", "report", "report", "end"])
    ended, seen = work(second)
    assert ended == "an outcome"
    assert [(info.index, info.count) for info in seen.jobs] == [(1, 2)]
    assert second.reports == [({}, None)] * 2


def test_a_worker_too_many_for_the_batch_waits(work):
    third = Ray(2, 3, ["10.0.0.1:9", "report", "end"])
    ended, seen = work(third)
    assert ended is None and not seen.jobs and not seen.trained
    assert third.reports == [({}, None)]


def test_a_single_worker_joins_nothing(work):
    ended, seen = work(Ray(0, 1))
    assert ended == "an outcome" and not seen.jobs


def test_a_worker_trains_into_a_bucket(work, experiment, tmp_path):
    url = f"memory://{tmp_path.name}"
    ended, seen = work(Ray(0, 1), directory=url)
    assert ended == "an outcome"
    assert str(seen.trained[0][1]) == url and not seen.trained[0][1].folder.exists()


def machines_of(name, number):
    return [
        {
            "Alive": True,
            "NodeManagerAddress": f"10.0.{name}.{index}",
            "Labels": {"ray.io/tpu-slice-name": name, "ray.io/tpu-worker-id": str(index)},
        }
        for index in range(number)
    ]


@pytest.fixture
def megascale(monkeypatch):
    """Undoes the variables of slices that a worker sets."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    names = [f"MEGASCALE_{name}" for name in ("COORDINATOR_ADDRESS", "NUM_SLICES", "SLICE_ID")]
    for name in names:
        monkeypatch.setenv(name, "of a former group")
    return lambda: [os.environ.get(name) for name in names]


def test_processes_are_numbered_as_the_machines_of_their_slice(work, megascale):
    nodes = [*machines_of("7", 4), *machines_of("8", 4)]
    # Ray's first worker is on the third machine of its slice.
    first = Ray(0, 4, labels=nodes[2]["Labels"], nodes=nodes)
    _, seen = work(first, "train.batch_size=16", platform="tpu", per_slice=4)
    (info,) = seen.jobs
    assert (info.index, info.count) == (2, 4)
    host, _, port = info.coordinator.rpartition(":")
    assert host == "10.0.7.0" and 53_000 <= int(port) < 57_096
    # The first worker leads the reports, and has no metrics.
    assert first.announced[1:] == ["report", "end"]
    assert first.reports == [({}, None)]
    assert megascale() == [None] * 3


def test_workers_of_several_slices_are_told_of_each_other(work, megascale):
    nodes = [*machines_of("7", 4), *machines_of("8", 4)]
    told = ["10.0.7.0:53000", "report", "end"]
    sixth = Ray(5, 8, told, labels=nodes[4]["Labels"], nodes=nodes)
    _, seen = work(sixth, "train.batch_size=32", platform="tpu", per_slice=4)
    (info,) = seen.jobs
    assert (info.index, info.count, info.coordinator) == (4, 8, "10.0.7.0:53000")
    assert megascale() == ["10.0.7.0", "2", "1"]


def test_the_first_process_has_the_metrics_wherever_ray_counts_it(work, megascale, directory):
    class Late(Ray):
        def broadcast(self, value):
            told = super().broadcast(value)
            while told == "report" and directory.latest_step() != 4:
                time.sleep(0.01)
            return told

    told = ["10.0.7.0:53000", "report", "end"]
    third = Late(2, 4, told, labels=machines_of("7", 4)[0]["Labels"])
    _, seen = work(third, "train.batch_size=16", platform="tpu", per_slice=4)
    assert seen.jobs[0].index == 0
    checkpoint = {"step": 4, "path": str(directory.path / "checkpoints" / "4")}
    ((metrics, reported),) = third.reports
    assert metrics["loss"] == 2.0 and reported == checkpoint


def test_a_worker_without_the_devices_of_its_kind_says_so(work, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused(Parameter("slice")):
        work(Ray(0, 1), platform="tpu")
    with refused(Parameter("resources"), "JAX", "GPU"):
        work(Ray(0, 1), platform="gpu")
    reporting = [thread for thread in threading.enumerate() if thread.name == "stillbox-report"]
    for thread in reporting:
        thread.join(10)
    assert not any(thread.is_alive() for thread in reporting)
