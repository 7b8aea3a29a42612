"""Commands about several machines: worker; cluster up and health."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Annotated, Any

from typer import Argument, Option

from splitnet.cli.console import say, show_rows
from splitnet.cli.options import AllowRemote
from splitnet.core.cluster import Cluster
from splitnet.core.errors import ConfigError, parse_bytes

MemoryLimit = Annotated[
    str | None, Option(metavar="SIZE", help="Memory limit of each worker: '2 GB'.")
]
Program = Annotated[list[str], Argument(metavar="-- COMMAND ...")]
Threads = Annotated[
    int | None, Option(metavar="N", min=1, help="TensorFlow threads of each worker.")
]

_EXPOSED = (
    "--allow-remote: TensorFlow's port has no password and no encryption. Whoever "
    "reaches it can run any code as this user. Put a firewall that admits the "
    "cluster's hosts only, or a VPN such as WireGuard, in front: docs/machines.md."
)


def worker(
    cluster: Annotated[
        str | None,
        Option(
            metavar="FILE.toml",
            help="File with the addresses of all hosts; else those of the job.",
        ),
    ] = None,
    index: Annotated[
        int | None, Option(metavar="K", help="Number of this worker; else the job's.")
    ] = None,
    core: Annotated[
        int | None, Option(metavar="C", help="Use this processor core only.")
    ] = None,
    threads: Threads = None,
    memory: MemoryLimit = None,
    allow_remote: AllowRemote = False,
) -> int:
    """Serve this machine's devices to a remote program, until killed.

    Without --cluster, addresses and number are those of TF_CONFIG, Slurm, Kubernetes
    or SPLITNET_CLUSTER. Refuses a network that others can reach, unless allowed.
    """
    from splitnet.tf.workers.resolve import job_of
    from splitnet.tf.workers.serve import serve

    if cluster:
        where = Cluster.load(cluster)
    else:
        job = job_of(os.environ)
        where = job.cluster
        index = job.index if index is None else index
        say(f"cluster of {len(where.hosts)} hosts: {job.origin}")
    if index is None:
        raise ConfigError("the number of this worker is unknown. Give it: --index K.")
    if allow_remote:
        say(_EXPOSED)
    limit = None
    if memory:
        limit = parse_bytes(int(memory) if memory.isdigit() else memory, "--memory")
    serve(
        where,
        index,
        core=core,
        threads=threads,
        memory_bytes=limit,
        allow_remote=allow_remote,
    )
    return 0


def up(
    program: Program,
    workers: Annotated[int, Option(metavar="N", help="Number of workers.")] = 2,
    pin: Annotated[bool, Option("--pin", help="Pin each worker to one core.")] = False,
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
    options = {"pin": pin, "threads": threads, "allow_remote": allow_remote}
    return run_with_workers(program, workers, memory_limit=memory, **options)


def run_with_workers(
    program: list[str], workers: int, *, max_restarts: int = 0, **options: Any
) -> int:
    """Run a program with private workers here; start both again when one fails.

    A worker that has ended or does not answer is started again, or left out of the
    cluster if it does not start. The program is started again from its beginning, and
    goes on from its own backup. SIGTERM ends both, and nothing is started again.
    `options` are those of `sn.local_workers`.
    """
    from splitnet.tf.workers.health import probe, workers_of
    from splitnet.tf.workers.start import local_workers

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the program runs
    with local_workers(workers, **options) as started:
        for restart in range(1, max_restarts + 2):
            began = time.monotonic()
            code, signals = run_program(program, _environment(started.file))
            if code == 0 or signals or restart > max_restarts:
                break
            after = f"after {time.monotonic() - began:.0f} s"
            say(f"{program[0]} ended with code {code} {after}")
            for found in probe(workers_of(started.cluster), timeout_seconds=5.0):
                if found.state != "healthy":
                    say(started.start_again(found.host.task))
            say(f"restart {restart} of {max_restarts}")
        for host in workers_of(started.cluster):
            if ended := started.ended(host.task):
                say(ended)
    return code


def _environment(cluster_file: object) -> dict[str, str]:
    """For a program with workers of this machine, which is in no job of many hosts."""
    from splitnet.tf.workers.resolve import JOB_VARIABLES
    from splitnet.tf.workers.start import CLUSTER_VARIABLE

    others = {k: v for k, v in os.environ.items() if k not in JOB_VARIABLES}
    return others | {CLUSTER_VARIABLE: str(cluster_file)}


def run_program(
    program: list[str], environ: Mapping[str, str]
) -> tuple[int, list[int]]:
    """Run a program and pass signals on to it; its exit code, and those signals.

    It ends when this process does, even if that is killed.
    """
    from splitnet.tf.workers.network_namespace import end_with_parent

    running: list[subprocess.Popen[bytes]] = []
    signals: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        if not running:
            raise KeyboardInterrupt
        signals.append(number)
        if number != signal.SIGINT or not _in_foreground():
            running[0].send_signal(number)

    before = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        running.append(
            subprocess.Popen(program, env=environ, preexec_fn=end_with_parent)
        )
        code = running[0].wait()
    except OSError as error:
        raise ConfigError(f"cannot run {program[0]!r}: {error.strerror}.") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (code if code >= 0 else 128 - code), signals  # as shells report signals


def _in_foreground() -> bool:
    """Whether the terminal sends Ctrl-C to this process, and so to its children."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def health(
    cluster: Annotated[str, Argument(metavar="FILE.toml", help="The cluster file.")],
) -> int:
    """Check every worker of a cluster; exit code 1 if one is not healthy."""
    from splitnet.tf.workers.health import probe, workers_of

    found = probe(workers_of(Cluster.load(cluster)))
    lines = [(one.host.name, one.host.address, one.state) for one in found]
    show_rows(("worker", "address", "state"), lines)
    return 0 if found and all(one.state == "healthy" for one in found) else 1
