"""Commands about several machines: worker, launch; cluster up and health."""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument

import splitnet as sn
from splitnet.cli.console import answer, say
from splitnet.cli.options import AllowRemote
from splitnet.core.checks import Count, Positive
from splitnet.core.cluster import PRESETS, Cluster, preset_of
from splitnet.core.errors import ConfigError, parse_quantity
from splitnet.core.serialization import write_bytes

Program = Annotated[list[str], Argument(metavar="-- COMMAND ...")]
MemoryLimit = Annotated[str, "Memory limit of each worker: '2 GB'."]
Threads = Annotated[Positive, "TensorFlow threads of each worker."]

_EXPOSED = (
    "--allow-remote: TensorFlow's port has no password and no encryption. Whoever "
    "reaches it can run any code as this user. Put a firewall that admits the "
    "cluster's hosts only, or a VPN such as WireGuard, in front: docs/machines.md."
)
_ENGINES = {"slurm": "sbatch", "kubernetes": "kubectl apply -f"}  # start the job


def worker(
    cluster: Annotated[str, "File with the addresses of all hosts."] = None,
    index: Annotated[Count, "Number of this worker; else the job's."] = None,
    core: Annotated[Count, "Use this processor core only."] = None,
    threads: Threads = None,
    memory: MemoryLimit = None,
    allow_remote: AllowRemote = False,
) -> None:
    """Serve this machine's devices to a remote program, until killed.

    Without --cluster, addresses and number are those of TF_CONFIG, Slurm, Kubernetes
    or SPLITNET_CLUSTER. Refuses a network that others can reach, unless allowed.
    """
    from splitnet.tf.workers.connect import job_of
    from splitnet.tf.workers.start import serve

    if core is not None and core not in (here := sorted(os.sched_getaffinity(0))):
        raise ConfigError(f"there is no processor core {core} here. Here: {here}.")
    if cluster:
        where = Cluster.load(cluster)
    else:
        where, origin, own = job_of(os.environ)
        index = own if index is None else index
        say(f"cluster of {len(where.hosts)} hosts: {origin}")
    if index is None:
        raise ConfigError("the number of this worker is unknown. Give it: --index K.")
    if allow_remote:
        say(_EXPOSED)
    limit = round(parse_quantity(memory, "--memory", "B")) if memory else None
    how = {"core": core, "threads": threads, "memory_bytes": limit}
    serve(where, index, allow_remote=allow_remote, **how)


def up(
    program: Program,
    workers: Annotated[Positive, "Number of workers."] = 2,
    pin: Annotated[bool, "Pin each worker to one core."] = False,
    threads: Threads = None,
    memory: MemoryLimit = None,
    allow_remote: AllowRemote = False,
) -> int:
    """Start private workers here, run a program with them, end them.

    Only the workers and the program can reach their network. sn.connect() in the
    program finds the cluster. The exit code is that of the program.
    """
    if allow_remote:
        say(_EXPOSED)
    options = {"pin": pin, "threads": threads, "memory_limit": memory}
    return run_with_workers(program, workers, allow_remote=allow_remote, **options)


def run_with_workers(
    program: list[str], workers: int, *, max_restarts: int = 0, **options: Any
) -> int:
    """Run a program with private workers here; start both again when one fails.

    SIGTERM ends both. `options` are those of `sn.local_workers`.
    """
    from splitnet.tf.workers import connect

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the program runs
    with sn.local_workers(workers, **options) as started:
        # With workers of this machine a program is in no job of many hosts.
        env = {k: v for k, v in os.environ.items() if k not in connect.JOB_VARIABLES}
        env[connect.CLUSTER_VARIABLE] = str(started.file)
        for restart in range(1, max_restarts + 2):
            code, signals = run_program(program, env)
            if code and not signals:
                say(f"{program[0]} ended with code {code}")
            if code == 0 or signals or restart > max_restarts:
                break
            hosts = connect.workers_of(started.cluster)
            for found in connect.probe(hosts, timeout_seconds=5.0):
                if found.state != "healthy":
                    say(started.restart(found.host.task))
            say(f"restart {restart} of {max_restarts}")
        for host in connect.workers_of(started.cluster):
            if ended := started.ended(host.task):
                say(ended)
    return code


def run_program(program: list[str], env: Mapping[str, str]) -> tuple[int, list[int]]:
    """Run a program: its exit code, and the signals that this process got meanwhile.

    SIGTERM is passed on; the terminal itself sends Ctrl-C to both. The program ends
    when this process does, even if that is killed.
    """
    from splitnet.tf.workers.start import end_with_parent

    signals: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        signals.append(number)
        if number == signal.SIGTERM:
            running.send_signal(number)

    try:
        running = subprocess.Popen(program, env=env, preexec_fn=end_with_parent)
    except OSError as error:
        why = f"{program[0]!r}: {error.strerror}. Give a command: python train.py"
        raise ConfigError(f"cannot run {why}") from None
    before = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
    code = running.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    return (code if code >= 0 else 128 - code), signals  # as shells report signals


def health(
    cluster: Annotated[str, Argument(metavar="FILE.toml", help="The cluster file.")],
) -> int:
    """Check every worker of a cluster; exit code 1 if one is not healthy."""
    from splitnet.tf.workers.connect import probe, workers_of

    if not (found := probe(workers_of(Cluster.load(cluster)))):
        raise ConfigError(f"{cluster!r} has no worker with an address in [hosts].")
    cells = ((one.host.name, one.host.address, one.state) for one in found)
    answer(None, [dict(zip(("worker", "address", "state"), row)) for row in cells])
    return 0 if all(one.state == "healthy" for one in found) else 1


def launch(
    program: Program = None,
    engine: Annotated[Literal[*_ENGINES], "What starts the processes."] = "slurm",
    nodes: Annotated[Positive, "Hosts with a worker."] = 2,
    gpus_per_node: Annotated[Count, "GPUs of each host."] = 0,
    preset: Annotated[str, "Model of the GPUs: A100, H100 ..."] = None,
    name: Annotated[str, "Of the job: lower case, digits and '-'."] = "splitnet",
    image: Annotated[str, "Kubernetes: container with splitnet in it."] = None,
    max_restarts: Annotated[Count, "Starts of the program after a failure."] = 3,
    out: Annotated[Path, "Write it into this file."] = None,
) -> None:
    """Write an sbatch script or a Kubernetes manifest for a program.

    Each host serves its devices by `splitnet worker`; the program runs once and calls
    sn.connect(). Nothing is started: sbatch or kubectl starts and ends processes.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    named = re.fullmatch(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?", name)
    known = preset is None or preset_of(preset)
    wrong = {
        "name a command: splitnet launch -- python train.py": not program,
        f"--name is a-z, then a-z, 0-9 and '-', at most 42, not {name!r}": not named,
        f"there is no preset {preset!r}. Known: {', '.join(PRESETS)}": not known,
        "a Kubernetes manifest needs --image": engine == "kubernetes" and not image,
        "--image is of --engine kubernetes; leave it out": engine == "slurm" and image,
    }
    if faults := [fault for fault, holds in wrong.items() if holds]:
        raise ConfigError("a job cannot be written.", faults)
    given = {"ALLOW_REMOTE": 1, "GPUS_PER_HOST": gpus_per_node, "GPU_PRESET": preset}
    if engine == "kubernetes":
        given |= {"PORT": 2222, "STATEFUL_SET": f"{name}-worker", "SERVICE": name}
        given |= {"WORKERS": nodes, "CLIENT": f"{name}-client.{name}:2222"}
    how = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    loader = PackageLoader("splitnet.cli")
    environment = Environment(loader=loader, undefined=StrictUndefined, **how)
    as_json = partial(json.dumps, ensure_ascii=False)
    environment.filters |= {"quote": shlex.quote, "json": as_json}
    its = {"name": name, "image": image, "program": program, "nodes": nodes}
    its |= {"gpus_per_node": gpus_per_node, "max_restarts": max_restarts}
    its["variables"] = {f"SPLITNET_{key}": str(v) for key, v in given.items() if v}
    text = environment.get_template(f"{engine}.j2").render(its)
    if out is None:
        print(text, end="")
    else:
        write_bytes(text.encode(), out, "job")
        print(f"wrote {out}; start it: {_ENGINES[engine]} {out}")
