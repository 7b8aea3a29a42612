"""Join this program to workers, check their health, and wait for what they still do.

TensorFlow ends a step at once if a worker dies, and waits without limit if one hangs.
So a thread asks every worker for its state, and closes the connections to one that does
not answer: the step then ends with an error as well.

TensorFlow sends operations outside of functions to a worker and does not wait; a
function reaches the worker by another way. After `set_weights`, `load_weights` or a
callback that restores weights, a step could so run on the old values, or on none. So
each step of a model that uses workers waits for those operations first.
"""

import functools
import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any

from splitnet.core.cluster import CLIENT, Cluster, Host
from splitnet.core.errors import ConfigError, WorkerError, listed
from splitnet.core.plan import Plan
from splitnet.tf.runtime.configure import started
from splitnet.tf.runtime.logging import hide_remarks, log_filter
from splitnet.tf.workers.health import (
    Health,
    bypass_proxy,
    close_connections,
    failure_message,
    is_about_workers,
    lost_message,
    probe,
)
from splitnet.tf.workers.resolve import job_of
from splitnet.tf.workers.serve import VERSION_MARK, check_network, check_port, spec_of

_LOGGER = logging.getLogger("splitnet")
_PATIENCE = 2  # requests without an answer before a worker counts as lost
_LONG_SECONDS = 8.0  # for a second answer, before work is refused
_joined: list["Connection"] = []
_plans: weakref.WeakKeyDictionary[Any, Plan] = weakref.WeakKeyDictionary()


class Connection:
    """A joined cluster. As a context manager it names the worker that failed a block.

    `cluster` is what was joined, `origin` where it was found ("given", "TF_CONFIG",
    "Slurm's variables", ...), `health()` the state of its workers now.
    """

    def __init__(self, cluster: Cluster, origin: str, watch_seconds: float) -> None:
        self.cluster, self.origin = cluster, origin
        self._workers = _workers_of(cluster)
        self._every = watch_seconds
        self._over = threading.Event()
        self._lost: dict[str, Health] = {}
        if watch_seconds:
            threading.Thread(target=self._watch, daemon=True).start()

    def health(self, *, timeout_seconds: float = 2.0) -> tuple[Health, ...]:
        """Ask every worker for its state; takes `timeout_seconds` at most."""
        return probe(self._workers, timeout_seconds=timeout_seconds)

    def close(self) -> None:
        """Stop the health check. TensorFlow cannot leave a cluster."""
        self._over.set()

    def _watch(self) -> None:
        missed = dict.fromkeys((worker.name for worker in self._workers), 0)
        while not self._over.wait(self._every):
            for found in self.health(timeout_seconds=max(self._every, 0.5)):
                name = found.host.name
                missed[name] = missed[name] + 1 if found.state != "healthy" else 0
                if missed[name] >= _PATIENCE:  # each round: TensorFlow connects again
                    self._lost[name] = replace(found, seconds=found.seconds * _PATIENCE)
                    close_connections(found.host.address)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say which worker failed, if that is why the block did.

        Raises:
            WorkerError: a worker died, hangs or is another process than before.
        """
        if error is not None and is_about_workers(error):
            bad, self._lost = self._lost or self._unwell(), {}
            parts = {name: _parts_of(name) for name in bad}
            raise WorkerError(failure_message(bad, parts, error)) from error

    def check(self, *, ask: bool) -> None:
        """Refuse to go on while a worker is lost.

        `ask` all workers now, or only if the health check missed an answer.
        """
        if ask or self._lost:
            self._lost = self._unwell() and self._unwell(_LONG_SECONDS)
        if self._lost:
            raise WorkerError(lost_message(self._lost))

    def _unwell(self, timeout_seconds: float = 2.0) -> dict[str, Health]:
        found = self.health(timeout_seconds=timeout_seconds)
        return {h.host.name: h for h in found if h.state != "healthy"}


def connect(
    cluster: Cluster | None = None,
    *,
    allow_remote: bool = False,
    wait_seconds: float | None = None,
    watch_seconds: float = 2.0,
) -> Connection:
    """Join this program to a cluster's workers; their devices can be placed on then.

    Do it before the first layer, tensor or dataset. Joining the same cluster again, or
    what is left of it (`Cluster.without`), makes workers that came back usable; models
    from before are lost.

    Args:
        cluster: its `hosts` give an address to every worker and to the client, which
            is this program. None takes it from `TF_CONFIG`, Slurm, Kubernetes or the
            file that `splitnet cluster up` names, in this order, and logs which.
        allow_remote: join although others can reach this machine: joining makes this
            program listen on every interface. `SPLITNET_ALLOW_REMOTE=1` says the same.
        wait_seconds: how long workers may take until they answer; None allows 30 s,
            and 10 minutes in a job of many hosts.
        watch_seconds: how often to ask the workers for their state; connections to one
            that misses two requests are closed. 0 asks never.

    Raises:
        ConfigError: too late, no address, the client's port in use, another version of
            TensorFlow, or a network that is not private.
        WorkerError: workers that do not answer; all of them.
        DeviceError: the cluster file cannot be read.
    """
    origin, usual = "given", 30.0
    if cluster is None:
        job = job_of(os.environ)
        cluster, origin = job.cluster, job.origin
        if job.waits:
            usual = 600.0
            _LOGGER.warning("cluster of %d hosts: %s", len(cluster.hosts), origin)
    workers = _checked_workers(cluster)
    check_network(allow_remote=allow_remote)
    again = started()
    if again:
        _check_same(cluster)
    bypass_proxy(cluster.hosts)
    _wait_for(workers, usual if wait_seconds is None else wait_seconds)
    client = next(host for host in cluster.hosts if host.name == CLIENT)
    if not again:
        check_port(client)
    hide_remarks()
    with log_filter():
        import tensorflow as tf

        from splitnet.tf.internals.tf_api import join_again

        spec = spec_of((*workers, client))
        if again:  # the old health check goes on: a worker may hang meanwhile
            join_again(spec)
        else:
            tf.config.experimental_connect_to_cluster(
                spec, job_name="client", task_index=0, protocol="grpc"
            )
    _check_versions(workers, tf)
    for old in _joined:
        old.close()
    _joined[:] = [Connection(cluster, origin, watch_seconds)]
    return _joined[0]


def wait_for_workers(*, ask: bool = False) -> None:
    """Wait until workers have done what they were asked outside of any function.

    TensorFlow would wait for a lost worker without limit, so that is checked first: if
    `ask`, by asking all workers now.
    """
    if not started():
        return
    for connection in _joined:
        connection.check(ask=ask)
    from splitnet.tf.internals.tf_api import wait_for_eager_operations

    wait_for_eager_operations()


def add_barrier(model: Any, plan: Plan) -> None:
    """Let each step of a model wait for workers first, if it uses some.

    Costs a call to each worker a step.
    """
    if any(plan.cluster[name].host for name in plan.device_of.values()):
        _plans[model] = plan
        for kind in ("train", "test", "predict"):
            _wait_first(model, f"{kind}_function")


def _wait_first(model: Any, name: str) -> None:
    """Add the wait to the step functions that Keras makes and keeps as `name`."""
    make: Callable[..., Any] = getattr(model, f"make_{name}")

    @functools.wraps(make)
    def making(*args: Any, **kwargs: Any) -> Any:
        wait_for_workers(ask=True)
        make(*args, **kwargs)
        run = getattr(model, name)
        if run is None or hasattr(run, "_waits"):
            return run

        @functools.wraps(run)
        def waiting(*args: Any, **kwargs: Any) -> Any:
            wait_for_workers()
            return run(*args, **kwargs)

        vars(waiting)["_waits"] = True
        setattr(model, name, waiting)
        return waiting

    vars(model)[f"make_{name}"] = making


def _parts_of(host: str) -> str:
    """The parts of all models on each device of a host, for a message."""
    found: dict[str, dict[str, None]] = {}
    for plan in _plans.values():
        for part, name in plan.device_of.items():
            if plan.cluster[name].host == host:
                found.setdefault(name, {})[part] = None
    return "; ".join(f"{name} ran {', '.join(ps)}" for name, ps in found.items())


def _workers_of(cluster: Cluster) -> tuple[Host, ...]:
    """The workers that have a device: `Cluster.without` leaves others out."""
    used = {device.host for device in cluster}
    return tuple(h for h in cluster.hosts if h.job == "worker" and h.name in used)


def _checked_workers(cluster: Cluster) -> tuple[Host, ...]:
    known = {host.name for host in cluster.hosts}
    faults = [
        f"device {device.name!r} is on {device.host}, which has no address"
        for device in cluster
        if device.host and device.host not in known
    ]
    if CLIENT not in known:
        faults.append(
            "the client (this program) has no address: the workers must call it"
        )
    workers = _workers_of(cluster)
    if not workers:
        faults.append("there is no worker to join")
    if faults:
        raise ConfigError(
            listed(
                "cannot join this cluster: give it a table [hosts] with lines such as "
                '"client" = "10.0.0.1:2222" and "worker:0" = "10.0.0.2:2222".',
                faults,
            )
        )
    return workers


def _check_same(cluster: Cluster) -> None:
    """TensorFlow has started: only the cluster that was joined before can be joined."""
    if not _joined:
        raise ConfigError(
            "too late to join a cluster: TensorFlow has already started. Call "
            "sn.connect(cluster) before the first layer, tensor or dataset is made; "
            "in a notebook, restart the kernel first."
        )
    if _joined[0].cluster.hosts != cluster.hosts:
        raise ConfigError(
            "this program has joined another cluster; TensorFlow can join one only."
        )


def _wait_for(workers: tuple[Host, ...], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        found = probe(workers, timeout_seconds=min(max(left, 0.2), 2.0))
        bad = [health.words for health in found if health.state != "healthy"]
        if not bad:
            return
        if left <= 0:
            raise WorkerError(
                listed(
                    f"{len(bad)} of {len(workers)} workers did not answer within "
                    f"{seconds:.0f} s. Start them with `splitnet worker --cluster FILE "
                    "--index K`, or look at the addresses in [hosts].",
                    bad,
                )
            )
        time.sleep(min(0.1, left))


def _check_versions(workers: Iterable[Host], tf: Any) -> None:
    """Read each worker's version of TensorFlow from its process name."""
    faults = []
    for worker in workers:
        with tf.device(f"/job:worker/replica:0/task:{worker.task}/device:CPU:0"):
            name = tf.io.read_file("/proc/self/comm").numpy().decode().strip()
        if not name.startswith(VERSION_MARK):
            warnings.warn(
                f"{worker.name} was not started by splitnet ({name!r}); its version of "
                "TensorFlow is not known.",
                stacklevel=3,
            )
        elif name != f"{VERSION_MARK}{tf.__version__}"[:15]:
            version = name.removeprefix(VERSION_MARK)
            faults.append(f"{worker.name} ({worker.address}) has TensorFlow {version}")
    if faults:
        raise ConfigError(
            listed(
                f"this program has TensorFlow {tf.__version__}, workers have another. "
                "Install the same version everywhere.",
                faults,
            )
        )
