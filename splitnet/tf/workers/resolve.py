"""The cluster of a job, from TF_CONFIG, Slurm, Kubernetes or a file.

The program that trains and its workers read the same variables, so that each of them
knows every address. Slurm's are read by TensorFlow's own resolver.
"""

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from splitnet.core.cluster import CLIENT, PRESETS, Cluster, Host, Link
from splitnet.core.errors import ConfigError
from splitnet.tf.workers.start import CLUSTER_VARIABLE

JOB_VARIABLES = ("TF_CONFIG", "SLURM_JOB_ID", "SPLITNET_STATEFUL_SET")
"""Each stands for a job of many hosts, in the order in which they are asked."""
_PORT = 2222  # the client's; workers listen at the next ones
_BETWEEN_HOSTS = Link("*", "*", 1.2e9, 2e-4)


@dataclass(frozen=True)
class Job:
    """A job's cluster, where it was found, and which worker this process is, if any."""

    cluster: Cluster
    origin: str
    index: int | None = None
    waits: bool = True


def job_of(environ: Mapping[str, str]) -> Job:
    """The cluster that the environment describes.

    Asked in this order: `TF_CONFIG`; Slurm's variables; those of a Kubernetes
    StatefulSet, as `splitnet launch` writes them; the file of `SPLITNET_CLUSTER`.
    `SPLITNET_GPUS_PER_HOST` and `SPLITNET_GPU_PRESET` describe the GPUs of each host,
    where Slurm does not.

    Raises:
        ConfigError: none of them, or one that cannot be read.
        DeviceError: the file cannot be read.
    """
    if environ.get("TF_CONFIG"):
        return _tf_config(environ)
    if environ.get("SLURM_JOB_ID"):
        return _slurm(environ)
    if environ.get("SPLITNET_STATEFUL_SET"):
        return _stateful_set(environ)
    path = environ.get(CLUSTER_VARIABLE)
    if path:
        return Job(Cluster.load(path), f"file {path}", waits=False)
    raise ConfigError(
        "which cluster? Give one, such as Cluster.load('cluster.toml'), or start the "
        "program with `splitnet cluster up --workers N -- python program.py`, with "
        "`splitnet launch`, or under Slurm. Looked for: TF_CONFIG, SLURM_JOB_ID, "
        f"SPLITNET_STATEFUL_SET, {CLUSTER_VARIABLE}."
    )


def _tf_config(environ: Mapping[str, str]) -> Job:
    try:
        config = json.loads(environ["TF_CONFIG"])
        jobs = {name: list(config["cluster"][name]) for name in config["cluster"]}
        task = config.get("task", {})
        kind, index = task.get("type"), int(task.get("index", 0))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"TF_CONFIG cannot be read ({type(error).__name__}: {error}). Example: "
            '{"cluster": {"chief": ["a:2222"], "worker": ["b:2222"]}, '
            '"task": {"type": "worker", "index": 0}}.'
        ) from None
    client = jobs.get("client") or jobs.get("chief") or jobs.get("master")
    workers = jobs.get("worker", [])
    if not client or not workers:
        raise ConfigError(
            "TF_CONFIG needs a chief, which is the program that trains, and at least "
            f"one worker, which serves its devices. Found: {', '.join(jobs) or 'none'}."
        )
    mine = index if kind == "worker" else None
    return Job(_cluster(client[0], workers, environ), "TF_CONFIG", mine)


def _slurm(environ: Mapping[str, str]) -> Job:
    """A worker for each task of the step, the client on the job's first host."""
    import tensorflow as tf

    try:
        port = int(environ.get("SPLITNET_PORT", _PORT))
        with _step_of(environ):
            spec = tf.distribute.cluster_resolver.SlurmClusterResolver(
                port_base=port + 1,
                gpus_per_node=1024,
                gpus_per_task=1,
                auto_set_gpu=False,
            ).cluster_spec()
        workers = spec.as_dict()["worker"]
    except (RuntimeError, ValueError, AssertionError, KeyError) as error:
        raise ConfigError(
            f"Slurm's variables cannot be read ({error}). Run the workers by `srun` "
            "and the program in the same job, as `splitnet launch --engine slurm` does."
        ) from None
    here = environ.get("SLURMD_NODENAME", socket.gethostname())
    client = environ.get("SPLITNET_CLIENT", f"{here}:{port}")
    mine = None
    if "SLURM_PROCID" in environ:
        # The resolver sorts hosts by name, Slurm numbers tasks by its own list.
        own = f"{here}:{port + 1 + int(environ.get('SLURM_LOCALID', 0))}"
        mine = workers.index(own) if own in workers else int(environ["SLURM_PROCID"])
    return Job(_cluster(client, workers, environ), "Slurm's variables", mine)


@contextmanager
def _step_of(environ: Mapping[str, str]) -> Iterator[None]:
    """Variables of a step for the batch script, which has those of the job alone."""
    usual = {
        "SLURM_PROCID": "0",
        "SLURM_STEP_NODELIST": environ.get("SLURM_JOB_NODELIST", ""),
        "SLURM_STEP_NUM_TASKS": environ.get("SLURM_NTASKS", "1"),
        "SLURM_STEP_TASKS_PER_NODE": environ.get("SLURM_TASKS_PER_NODE", "1"),
    }
    before = dict(os.environ)
    os.environ.update(usual | {k: v for k, v in environ.items() if k in usual})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _stateful_set(environ: Mapping[str, str]) -> Job:
    """Pods of stable names: NAME-0.SERVICE, NAME-1.SERVICE and so on."""
    try:
        port = int(environ.get("SPLITNET_PORT", _PORT))
        name, service = environ["SPLITNET_STATEFUL_SET"], environ["SPLITNET_SERVICE"]
        count, client = int(environ["SPLITNET_WORKERS"]), environ["SPLITNET_CLIENT"]
    except (ValueError, KeyError) as error:
        raise ConfigError(
            "the variables of a StatefulSet cannot be read "
            f"({type(error).__name__}: {error}). SPLITNET_STATEFUL_SET, "
            "SPLITNET_SERVICE, SPLITNET_WORKERS and SPLITNET_CLIENT belong together; "
            "`splitnet launch --engine kubernetes` writes them."
        ) from None
    workers = [f"{name}-{i}.{service}:{port + 1}" for i in range(count)]
    pod, _, number = environ.get("HOSTNAME", "").rpartition("-")
    mine = int(number) if pod == name and number.isdigit() else None
    return Job(_cluster(client, workers, environ), f"StatefulSet {name}", mine)


def _cluster(
    client: str, workers: Sequence[str], environ: Mapping[str, str]
) -> Cluster:
    """Devices of equal hosts, their addresses, and usual links in and between hosts."""
    count, preset = _gpus_per_host(environ)
    names = ["cpu:0"]
    for index in range(len(workers)):
        names.append(f"worker:{index}/cpu:0")
        names += [f"worker:{index}/gpu:{number}" for number in range(count)]
    made = Cluster.of(*names, preset=preset)
    inside = made.links[0]
    links = [
        replace(inside, source=one.name, target=other.name)
        for one in made
        for other in made
        if one.host == other.host and one.name != other.name
    ]
    hosts = [Host(CLIENT, client)]
    hosts += [Host(f"worker:{index}", address) for index, address in enumerate(workers)]
    return replace(made, links=(*links, _BETWEEN_HOSTS), hosts=tuple(hosts))


def _gpus_per_host(environ: Mapping[str, str]) -> tuple[int, str | None]:
    """How many, and a preset; Slurm says "4" or "a100:4"."""
    said = environ.get("SPLITNET_GPUS_PER_HOST") or environ.get("SLURM_GPUS_PER_NODE")
    said = said or environ.get("SLURM_GPUS_ON_NODE") or "0"
    model, _, count = said.rpartition(":")
    if not count.isdigit():
        raise ConfigError(
            f"the number of GPUs of a host is a whole number. Received: {said!r} "
            "(SPLITNET_GPUS_PER_HOST, or Slurm's)."
        )
    known = {name.lower(): name for name in PRESETS}
    wanted = environ.get("SPLITNET_GPU_PRESET", known.get(model.lower()))
    return int(count), wanted if int(count) else None
