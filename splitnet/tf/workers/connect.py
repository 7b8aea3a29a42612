"""Join this program to workers, check their health, and wait for what they still do.

TensorFlow ends a step at once if a worker dies, and waits without limit if one hangs.
So a thread asks every worker for its state, by plain gRPC with a deadline, and closes
the connections to one that does not answer: the step then ends with an error as well.
"""

import functools
import json
import logging
import os
import socket
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any, NamedTuple

import psutil

from splitnet.core.cluster import CLIENT, Cluster, Host, Link, preset_of
from splitnet.core.errors import ConfigError, WorkerError, first_line, warn
from splitnet.core.plan import Plan
from splitnet.tf.runtime.configure import EARLIER, started
from splitnet.tf.runtime.logging import hide_remarks, log_filter
from splitnet.tf.workers.start import VERSION_MARK, listen, spec_of

CLUSTER_VARIABLE = "SPLITNET_CLUSTER"  # the file of the cluster that `up` started
_PORT = "2222"  # the client's; workers listen at the next ones
_BETWEEN_HOSTS = Link("*", "*", 1.2e9, 2e-4)
_Found = tuple[str, Sequence[str], int | None]  # client, workers, which is this one
_PATIENCE = 2  # requests without an answer before a worker counts as lost
_LONG_SECONDS = 8.0  # for an answer, before work is refused
_STATES = {"OK": "healthy", "DEADLINE_EXCEEDED": "unresponsive"}
_CAUSE = (
    "Another operation failed. The cause is in the first warnings on standard error, "
    "if TF_CPP_MIN_LOG_LEVEL is 1 at most; or fit the batch with run_eagerly=True."
)
_joined: list["Connection"] = []
_plans: weakref.WeakKeyDictionary[Any, Plan] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Health:
    """A worker is "healthy", "unresponsive" (it hangs) or "unreachable" (it died).

    `incarnation` is what it says of its devices, which differs after each start.
    """

    host: Host
    state: str
    incarnation: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        return f"{self.host.name} ({self.host.address}) is {self.state}"


def workers_of(cluster: Cluster) -> list[Host]:
    """The workers that have a device: `Cluster.without` leaves others out."""
    used = {device.host for device in cluster}
    return [h for h in cluster.hosts if h.job == "worker" and h.name in used]


def probe(hosts: Iterable[Host], *, timeout_seconds: float = 2.0) -> list[Health]:
    """Ask all these workers at once for their state, within the time limit."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # else forks abort or hang
    import grpc

    no_proxy = [("grpc.enable_http_proxy", 0)]
    with ExitStack() as channels:
        asked = []
        for host in hosts:
            channel = grpc.insecure_channel(host.address, options=no_proxy)
            channels.enter_context(channel)
            ask = channel.unary_unary("/tensorflow.WorkerService/GetStatus")
            asked.append((host, ask.future(b"", timeout=timeout_seconds)))
        answers = [(h, a.code().name, a.exception() or a.result()) for h, a in asked]
    return [
        Health(host, _STATES.get(code, "unreachable"), said if code == "OK" else b"")
        for host, code, said in answers
    ]


class Connection(AbstractContextManager["Connection"]):
    """A joined cluster; as a context manager, it names the worker that failed it."""

    def __init__(self, cluster: Cluster, watch_seconds: float) -> None:
        self.cluster, self._over = cluster, threading.Event()
        self._lost: dict[str, Health] = {}
        self._first: dict[str, bytes] = {}  # incarnations
        self.health()
        if watch_seconds:
            self._ends = {h.name: _ends(h.address) for h in workers_of(cluster)}
            watch = functools.partial(self._watch, watch_seconds)
            threading.Thread(target=watch, daemon=True).start()

    def __repr__(self) -> str:
        return f"<Connection to {self.cluster!r}>"

    def health(self, *, timeout_seconds: float = 2.0) -> list[Health]:
        """Ask every worker for its state; takes `timeout_seconds` at most."""
        found = probe(workers_of(self.cluster), timeout_seconds=timeout_seconds)
        for i, one in enumerate(found):
            first = self._first.setdefault(one.host.name, one.incarnation)
            if one.incarnation and first and one.incarnation != first:
                found[i] = replace(one, state="restarted, and empty")
        return found

    def close(self) -> None:
        """Stop the health check; TensorFlow cannot leave a cluster."""
        self._over.set()

    def _watch(self, every: float) -> None:
        missed = {worker.name: 0 for worker in workers_of(self.cluster)}
        while not self._over.wait(every):
            for found in self.health(timeout_seconds=max(every, 0.5)):
                name = found.host.name
                missed[name] = 0 if found.incarnation else missed[name] + 1
                if missed[name] >= _PATIENCE:  # each round: TensorFlow connects again
                    self._lost[name] = found
                    _close_connections(self._ends[name])

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Raise a WorkerError that names a worker, if it is why the block failed."""
        if error is not None and _is_about_workers(error):
            bad, self._lost = self.lost(), {}
            if bad:
                raise self._loss(bad, f" ({first_line(error)[:200]})") from error

    def check(self, *, ask: bool) -> None:
        """Refuse to go on while a worker is lost; `ask` all, or if one was silent."""
        if (ask or self._lost) and self._unwell():
            raise self._loss(self._lost)

    def lost(self) -> dict[str, Health]:
        """The workers that were found lost, by name; asks all if none was."""
        return self._lost or self._unwell()

    def _unwell(self) -> dict[str, Health]:
        found = self.health(timeout_seconds=_LONG_SECONDS)
        self._lost = {h.host.name: h for h in found if h.state != "healthy"}
        return self._lost

    def _loss(self, bad: dict[str, Health], reason: str = "") -> WorkerError:
        """The error about lost workers, with the parts of all models that they ran."""
        ran = defaultdict[str, dict[str, None]](dict)  # by host
        for plan in _plans.values():
            for part, device in plan.device_of.items():
                ran[plan.cluster[device].host][f"{device} ran {part}"] = None
        words = [". ".join([str(health), *ran[name]]) for name, health in bad.items()]
        rest = f", or without it, sn.connect(cluster.without({str([*bad])[1:-1]}))"
        rest *= len(bad) < len(workers_of(self.cluster))
        return WorkerError(
            f"a worker is lost{reason}. Join again, sn.connect(cluster), once "
            f"it is back{rest}; plan and emit the model for that cluster, and fit with "
            "the same sn.ResumeTraining: training goes on from its last backup.",
            words,
        )


def _ends(address: str) -> set[tuple[str, int]]:
    """What "host:port" stands for now; later no name server may answer."""
    host, _, port = address.rpartition(":")
    ends = [entry[4] for entry in socket.getaddrinfo(host.strip("[]"), int(port))]
    return {(str(end[0]).removeprefix("::ffff:"), int(end[1])) for end in ends}


def _close_connections(theirs: set[tuple[str, int]]) -> None:
    """Close this program's TCP connections to these ends; Linux only.

    One that ends makes TensorFlow, which never gives up, raise `UnavailableError`.
    """
    for connection in psutil.Process().net_connections("tcp"):
        peer = connection.raddr
        if peer and (peer.ip.removeprefix("::ffff:"), peer.port) in theirs:
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as plug:
                plug.shutdown(socket.SHUT_RDWR)  # it may be closed meanwhile


def _is_about_workers(error: BaseException) -> bool:
    """Whether TensorFlow may raise this because a worker is lost."""
    from tensorflow import errors

    kinds = (errors.UnavailableError, errors.AbortedError, errors.CancelledError)
    gone = type(error) is errors.InvalidArgumentError and "remote_handle" in str(error)
    return gone or isinstance(error, (*kinds, errors.DeadlineExceededError))


def connect(
    cluster: Cluster | None = None,
    *,
    allow_remote: bool = False,
    wait_seconds: float | None = None,
    watch_seconds: float = 2.0,
) -> Connection:
    """Join this program to a cluster's workers; their devices can be placed on then.

    Do it before the first layer, tensor or dataset. Joining the same cluster again, or
    what is left of it (`Cluster.without`), makes workers usable; old models are lost.

    Args:
        cluster: its `hosts` give an address to every worker and to the client, which
            is this program. None takes it from `TF_CONFIG`, Slurm, Kubernetes or the
            file that `splitnet cluster up` names, in this order, and logs which.
        allow_remote: join although others can reach this machine: joining makes this
            program listen on every interface. `SPLITNET_ALLOW_REMOTE=1` says the same.
        wait_seconds: how long workers may take until they answer and reach this
            program; None allows 30 s, and 10 minutes in a job of many hosts.
        watch_seconds: how often to ask the workers for their state; connections to one
            that misses two requests are closed. 0: never.

    Raises:
        ConfigError: too late, no address, one that workers cannot reach, the client's
            port in use, another version of TensorFlow, or an open network.
        WorkerError: workers that do not answer; all of them.
        DeviceError: the cluster file cannot be read.
    """
    usual = 30.0
    if cluster is None:
        cluster, origin, _ = job_of(os.environ)
        usual = 600.0 if any(map(os.environ.get, JOB_VARIABLES)) else usual
        said = f"cluster of {len(cluster.hosts)} hosts: {origin}"
        logging.getLogger("splitnet").warning(said)
    workers, address = workers_of(cluster), {host.name: host for host in cluster.hosts}
    needed = {CLIENT, *(device.host or CLIENT for device in cluster)}
    if missing := sorted(needed - {*address}) or ([] if workers else ["worker:0"]):
        fault = f"cannot join this cluster: no address for {', '.join(missing)}"
        form = 'a table [hosts] with lines such as "client" = "10.0.0.1:2222"'
        raise ConfigError(f"{fault}. Give it {form}.")
    again = started()
    if again and not _joined:
        late = "too late to join a cluster: TensorFlow has already started"
        raise ConfigError(f"{late}. {EARLIER}")
    if again and _joined[0].cluster.hosts != cluster.hosts:
        why = "TensorFlow can join one only. Start the program (or kernel) again"
        raise ConfigError(f"this program has joined another cluster; {why}.")
    listen(cluster, None if again else address[CLIENT], allow_remote=allow_remote)
    patience = usual if wait_seconds is None else wait_seconds
    _wait_for(workers, patience)
    hide_remarks()
    with log_filter():
        import tensorflow as tf

        from splitnet.tf.internals.tf_api import join_again

        spec = tf.train.ClusterSpec(spec_of((*workers, address[CLIENT])))
        if again:  # the old health check goes on: a worker may hang meanwhile
            join_again(spec)
        else:
            own = {"job_name": "client", "task_index": 0, "protocol": "grpc"}
            tf.config.experimental_connect_to_cluster(spec, **own)
    _check_workers(workers, address[CLIENT], patience, tf)
    for old in _joined:
        old.close()
    _joined[:] = [Connection(cluster, watch_seconds)]
    return _joined[0]


def _wait_for(workers: Sequence[Host], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while bad := [str(found) for found in probe(workers) if found.state != "healthy"]:
        if time.monotonic() > deadline:
            late = f"{len(bad)} of {len(workers)} workers did not answer"
            hint = "Start them by `splitnet worker`, or check the addresses in [hosts]"
            raise WorkerError(f"{late} in {seconds:.0f} s. {hint}.", bad)
        time.sleep(0.1)


def _check_workers(
    workers: Sequence[Host], client: Host, seconds: float, tf: Any
) -> None:
    """Read each worker's version of TensorFlow from its process name.

    Workers get the name of the file from this program, by the client's address, which
    a name server may know a little later.
    """
    names, deadline = list[Any](), time.monotonic() + seconds

    @tf.function(autograph=False)
    def read(path: Any) -> list[Any]:
        found = []
        for worker in workers:
            with tf.device(f"/job:worker/replica:0/task:{worker.task}/device:CPU:0"):
                found.append(tf.io.read_file(path))
        return found

    def ask() -> None:
        while True:
            with suppress(tf.errors.OpError):
                names.extend(read(tf.constant("/proc/self/comm")))
            if names or time.monotonic() > deadline:
                return
            time.sleep(0.1)

    (thread := threading.Thread(target=ask, daemon=True)).start()
    thread.join(max(seconds, _LONG_SECONDS))
    if not names:
        why = f"workers cannot reach this program at {client.address!r}"
        do = 'Give "client" in [hosts] an address that they reach, and start it again'
        raise ConfigError(f"{why}. {do}.")
    faults = []
    for worker, name in zip(workers, (name.numpy().decode().strip() for name in names)):
        version = name.removeprefix(VERSION_MARK)  # others do not say theirs
        if version != name != f"{VERSION_MARK}{tf.__version__}"[:15]:
            faults.append(f"{worker.name} ({worker.address}) has TensorFlow {version}")
    if faults:
        why = f"this program has TensorFlow {tf.__version__}, workers have another."
        raise ConfigError(f"{why} Install the same version everywhere.", faults)


def wait_for_workers(*, ask: bool = False) -> None:
    """Wait until workers have done what they were asked outside of any function.

    A function may overtake that, such as `set_weights`. A lost worker would be waited
    for without limit, so that is checked first: if `ask`, by asking all workers now. An
    operation that failed would fail all later ones too: its error is cleared.
    """
    if not started():
        return
    for connection in _joined:
        connection.check(ask=ask)
    import tensorflow as tf

    from splitnet.tf.internals.tf_api import wait_for_eager_operations

    try:
        wait_for_eager_operations()
    except tf.errors.OpError as error:
        if _is_about_workers(error):
            raise
        tf.experimental.async_clear_error()
        warn(f"an operation outside of any function failed: {first_line(error)}")


def add_barrier(model: Any, plan: Plan) -> None:
    """Let each step of a model wait for workers first, and its error say its cause."""
    if any(plan.cluster[name].host for name in plan.device_of.values()):
        _plans[model] = plan
    for name in ("train_function", "test_function", "predict_function"):
        make = functools.partial(_make, model, name, getattr(model, f"make_{name}"))
        vars(model)[f"make_{name}"] = make


def _make(model: Any, name: str, make: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the step function that Keras keeps as `name`; it waits first."""
    wait = wait_for_workers if model in _plans else lambda **_: None
    wait(ask=True)
    make(*args, **kwargs)
    run = getattr(model, name)
    if run is not None and not hasattr(run, "_waits"):

        @functools.wraps(run)
        def waiting(*args: Any, **kwargs: Any) -> Any:
            try:
                wait()
                return run(*args, **kwargs)
            except Exception as error:  # whatever fails is raised again
                if type(error).__name__ == "CancelledError":
                    error.add_note(_CAUSE)
                about = model in _plans and _is_about_workers(error)
                for connection in _joined if about else ():
                    for lost in connection.lost().values():
                        error.add_note(f"{lost}.")
                raise

        vars(waiting)["_waits"] = True
        setattr(model, name, waiting)
    return getattr(model, name)


class Job(NamedTuple):
    """A job's cluster, where it was found, and which worker this process is, if any."""

    cluster: Cluster
    origin: str
    index: int | None = None


def job_of(environ: Mapping[str, str]) -> Job:
    """The cluster that the environment describes; the first of those in the table.

    Else that of the file `SPLITNET_CLUSTER`. `SPLITNET_GPUS_PER_HOST` and
    `SPLITNET_GPU_PRESET` describe the GPUs of each host, where Slurm does not.
    """
    for variable, (origin, read) in JOB_VARIABLES.items():
        if environ.get(variable):
            try:
                client, workers, index = read(environ)
            except Exception as error:  # of variables, JSON or TensorFlow's resolver
                fault = f"{origin} cannot be read ({type(error).__name__}: {error})"
                raise ConfigError(f"{fault}. docs/machines.md has its form.") from None
            return Job(_cluster(client, workers, environ), origin, index)
    if path := environ.get(CLUSTER_VARIABLE):
        return Job(Cluster.load(path), f"file {path}")
    how = "a cluster file, or start by `splitnet cluster up` or `splitnet launch`"
    looked = ", ".join([*JOB_VARIABLES, CLUSTER_VARIABLE])
    raise ConfigError(f"which cluster? Give {how}. Looked for: {looked}.")


def _tf_config(environ: Mapping[str, str]) -> _Found:
    config = json.loads(environ["TF_CONFIG"])
    jobs, task = config["cluster"], config.get("task") or {}
    its = jobs.get("chief"), jobs.get("worker")
    if not all(addresses and isinstance(addresses, list) for addresses in its):
        need = "its cluster needs a chief, whose program trains, and workers that serve"
        raise ValueError(f"{need}, each a list of addresses; found: {jobs}")
    mine = int(task["index"]) if task.get("type") == "worker" else None
    return jobs["chief"][0], jobs["worker"], mine


def _slurm(environ: Mapping[str, str]) -> _Found:
    """A worker for each task of the step, the client on the job's first host."""
    import tensorflow as tf

    port = int(environ.get("SPLITNET_PORT", _PORT))
    step = {  # the batch script has the variables of the job alone
        "SLURM_PROCID": "0",
        "SLURM_STEP_NODELIST": environ.get("SLURM_JOB_NODELIST", ""),
        "SLURM_STEP_NUM_TASKS": environ.get("SLURM_NTASKS", "1"),
        "SLURM_STEP_TASKS_PER_NODE": environ.get("SLURM_TASKS_PER_NODE", "1"),
    }
    before = dict(os.environ)
    os.environ.update(step | {k: v for k, v in environ.items() if k in step})
    try:
        spec = tf.distribute.cluster_resolver.SlurmClusterResolver(
            port_base=port + 1, gpus_per_node=1024, gpus_per_task=1, auto_set_gpu=False
        ).cluster_spec()
    finally:
        os.environ.clear()
        os.environ.update(before)
    workers = spec.as_dict()["worker"]
    here = environ.get("SLURMD_NODENAME", socket.gethostname())
    mine = None
    if "SLURM_PROCID" in environ:
        # The resolver sorts hosts by name, Slurm numbers tasks by its own list.
        own = f"{here}:{port + 1 + int(environ.get('SLURM_LOCALID', 0))}"
        mine = workers.index(own) if own in workers else int(environ["SLURM_PROCID"])
    return environ.get("SPLITNET_CLIENT", f"{here}:{port}"), workers, mine


def _stateful_set(environ: Mapping[str, str]) -> _Found:
    """Pods of stable names: NAME-0.SERVICE, NAME-1.SERVICE and so on."""
    name, service = environ["SPLITNET_STATEFUL_SET"], environ["SPLITNET_SERVICE"]
    end = f"{service}:{int(environ.get('SPLITNET_PORT', _PORT)) + 1}"
    workers = [f"{name}-{i}.{end}" for i in range(int(environ["SPLITNET_WORKERS"]))]
    pod, _, number = environ.get("HOSTNAME", "").rpartition("-")
    mine = int(number) if pod == name and number.isdigit() else None
    return environ["SPLITNET_CLIENT"], workers, mine


JOB_VARIABLES = {  # of jobs of many hosts, in the order in which they are asked
    "TF_CONFIG": ("TF_CONFIG", _tf_config),
    "SLURM_JOB_ID": ("Slurm's variables", _slurm),
    "SPLITNET_STATEFUL_SET": ("the variables of a StatefulSet", _stateful_set),
}


def _cluster(client: str, workers: Sequence[str], env: Mapping[str, str]) -> Cluster:
    """Devices of equal hosts, their addresses, and usual links in and between hosts."""
    told = ("SPLITNET_GPUS_PER_HOST", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE")
    said = env.get(variable := next(filter(env.get, told), told[0])) or "0"
    model, _, count = said.rpartition(":")  # Slurm says "4" or "a100:4"
    if not count.isdigit():
        raise ConfigError(f"{variable} must be a number of GPUs. Received: {said!r}.")
    preset = env.get("SPLITNET_GPU_PRESET") or preset_of(model) or None
    jobs = [f"worker:{index}" for index in range(len(workers))]
    kinds = ["cpu:0", *(f"gpu:{number}" for number in range(int(count)))]
    names = ("cpu:0", *(f"{job}/{kind}" for job in jobs for kind in kinds))
    made = Cluster.of(*names, preset=preset if int(count) else None)
    inside = ((a, b) for a, b in permutations(made, 2) if a.host == b.host)
    links = [replace(made.links[0], source=a.name, target=b.name) for a, b in inside]
    hosts = tuple(map(Host, [CLIENT, *jobs], [client, *workers]))
    return replace(made, links=(*links, _BETWEEN_HOSTS), hosts=hosts)
