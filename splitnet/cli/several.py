"""Commands about several machines: worker, cluster up, join and health; measure."""

import os
import signal
import subprocess
import sys
from argparse import REMAINDER, Namespace
from typing import Any

from splitnet.cli.screen import hush, progress, show, show_json, show_rows
from splitnet.cli.sources import TARGET_HELP, load_source
from splitnet.core.cluster import Cluster
from splitnet.core.errors import ConfigError, parse_bytes

__all__ = ["add_commands"]

_EXPOSED = (
    "splitnet: --allow-remote: TensorFlow's port has no password and no encryption. "
    "Whoever reaches it can run what they like as this user. Put a firewall that "
    "admits the cluster's hosts only, or a VPN such as WireGuard, in front: "
    "docs/machines.md."
)


def add_commands(commands: Any) -> None:
    """Add the commands about several machines to the parser."""
    worker = commands.add_parser(
        "worker",
        help="serve this machine's devices to a program elsewhere",
        description="Run TensorFlow's server as one worker of a cluster, in the "
        "foreground. It refuses a network that others can reach, unless told.",
    )
    worker.add_argument(
        "--cluster", required=True, metavar="FILE.toml", help="has all hosts' addresses"
    )
    worker.add_argument(
        "--index", type=int, required=True, metavar="K", help="this is worker:K of it"
    )
    worker.add_argument("--core", type=int, metavar="C", help="stay on this core")
    worker.add_argument("--threads", type=int, metavar="N", help="of TensorFlow")
    worker.add_argument("--memory", metavar="SIZE", help="refuse more: '2 GB'")
    _add_allow_remote(worker)
    worker.add_argument(
        "--owned", action="store_true", help="end when standard input does"
    )
    worker.set_defaults(do=run_worker)

    cluster = commands.add_parser("cluster", help="workers of this machine, and others")
    verbs = cluster.add_subparsers(dest="verb", metavar="VERB", required=True)
    up = verbs.add_parser(
        "up",
        help="start private workers here, run a program with them, end them",
        description="Start worker processes in a network that only they and the "
        "program can reach. With a command, run it there (sn.connect() finds the "
        "cluster) and end with its exit code; without, wait for Ctrl-C.",
    )
    up.add_argument("--workers", type=int, default=2, metavar="N", help="how many (2)")
    up.add_argument("--pin", action="store_true", help="one core for each worker")
    up.add_argument("--threads", type=int, metavar="N", help="of each worker")
    up.add_argument("--memory", metavar="SIZE", help="limit of each worker: '2 GB'")
    _add_allow_remote(up)
    up.add_argument("program", nargs=REMAINDER, metavar="-- COMMAND ...")
    up.set_defaults(do=run_up)

    join = verbs.add_parser(
        "join", help="run a program in the private network of a running `cluster up`"
    )
    join.add_argument("pid", type=int, help="the process of `cluster up`")
    join.add_argument("program", nargs=REMAINDER, metavar="-- COMMAND ...")
    join.set_defaults(do=run_join)

    _add_measure(commands)

    health = verbs.add_parser("health", help="ask every worker whether it is healthy")
    health.add_argument("cluster", metavar="FILE.toml")
    health.add_argument(
        "--timeout", type=float, default=2.0, metavar="S", help="wait so long (2)"
    )
    health.add_argument("--json", action="store_true", help="for a program")
    health.set_defaults(do=run_health)


def _add_measure(commands: Any) -> None:
    measure = commands.add_parser(
        "measure",
        help="time every call of a model here, for plan --costs",
        description="Time each call forward and backward on each kind of device of "
        "this machine, and the roads between them.",
    )
    measure.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    measure.add_argument(
        "-o",
        "--out",
        default="costs.json",
        metavar="FILE",
        help="where to write them (costs.json)",
    )
    measure.add_argument("--batch", type=int, default=32, help="samples per step (32)")
    measure.add_argument(
        "--optimizer", default="adam", help="whose update to time (adam)"
    )
    measure.add_argument(
        "--stand-ins",
        type=int,
        default=0,
        metavar="N",
        help="let N CPU devices stand in for GPUs",
    )
    measure.set_defaults(do=run_measure)


def run_measure(arguments: Namespace) -> int:
    """Measure a model on this machine and save the table."""
    hush()
    from splitnet.tf.runtime.devices import local_cluster

    cluster = local_cluster(stand_in_gpus=arguments.stand_ins)
    source = load_source(arguments.target)
    from splitnet.core.costs.table import save_costs
    from splitnet.tf.profiling.measure import measure

    with progress("measuring", total=1.0) as advance:
        found = measure(
            source,
            cluster,
            arguments.batch,
            optimizer=arguments.optimizer,
            on_progress=advance,
        )
    save_costs(found, arguments.out)
    show(f"{len(found.forward)} rows of costs are in {arguments.out}")
    show(f"plan with them: splitnet plan TARGET --costs {arguments.out}")
    return 0


def _add_allow_remote(parser: Any) -> None:
    parser.add_argument(
        "--allow-remote",
        action="store_true",
        help="listen although other hosts can reach this machine; dangerous",
    )


def run_worker(arguments: Namespace) -> int:
    """Serve until killed."""
    from splitnet.tf.workers.serve import serve

    if arguments.allow_remote:
        print(_EXPOSED, file=sys.stderr)
    limit = None
    if arguments.memory:
        limit = parse_bytes(_number_or_text(arguments.memory), "--memory")
    serve(
        Cluster.load(arguments.cluster),
        arguments.index,
        core=arguments.core,
        threads=arguments.threads,
        memory_bytes=limit,
        allow_remote=arguments.allow_remote,
        owned=arguments.owned,
    )
    return 0


def _number_or_text(text: str) -> object:
    return int(text) if text.isdigit() else text


def run_up(arguments: Namespace) -> int:
    """Start workers, run the program or wait, end the workers."""
    from splitnet.tf.workers.start import CLUSTER_VARIABLE, local_workers

    if arguments.allow_remote:
        print(_EXPOSED, file=sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as well
    with local_workers(
        arguments.workers,
        pin=arguments.pin,
        threads=arguments.threads,
        memory_limit=arguments.memory,
        allow_remote=arguments.allow_remote,
    ) as workers:
        program = _program(arguments)
        if program:
            environ = os.environ | {CLUSTER_VARIABLE: str(workers.file)}
            workers.report_ends(_report)
            return _run(program, environ)
        show(f"{len(workers.processes)} workers are ready: {workers.file}")
        show(f"run a program: splitnet cluster join {os.getpid()} -- COMMAND ...")
        show(f"in it: sn.connect(sn.Cluster.load({str(workers.file)!r}))")
        show("Ctrl-C ends them.")
        sys.stdout.flush()
        try:
            ended = workers.wait()
        except KeyboardInterrupt:
            show("ending the workers")
            return 0
        raise ConfigError(f"{ended}\nAll workers are ended.")


def _report(message: str) -> None:
    print(f"splitnet: {message}", file=sys.stderr, flush=True)


def _program(arguments: Namespace) -> list[str]:
    words = list(arguments.program)
    return words[1:] if words[:1] == ["--"] else words


def _run(program: list[str], environ: "os._Environ[str] | dict[str, str]") -> int:
    """Run a program in this one's place: its signals are passed on, its code is ours.

    It ends when this process does, even if that is killed.
    """
    from splitnet.tf.workers.network_namespace import end_with_parent

    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: object) -> None:
        if not running:
            raise KeyboardInterrupt
        if number != signal.SIGINT or not _hears_ctrl_c():
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
    return code if code >= 0 else 128 - code  # as a shell says it of a signal


def _hears_ctrl_c() -> bool:
    """Whether the terminal sends Ctrl-C to this process, and so to what it runs."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def run_join(arguments: Namespace) -> int:
    """Run a program in the private network of a running `cluster up`."""
    from splitnet.tf.workers.network_namespace import enter

    program = _program(arguments)
    if not program:
        raise ConfigError("say what to run: splitnet cluster join PID -- COMMAND ...")
    enter(arguments.pid)
    return _run(program, os.environ)


def run_health(arguments: Namespace) -> int:
    """Ask every worker of a cluster file; 1 if one is not healthy."""
    from splitnet.tf.workers.health import probe

    hosts = [h for h in Cluster.load(arguments.cluster).hosts if h.job == "worker"]
    found = probe(hosts, timeout_seconds=arguments.timeout)
    if arguments.json:
        rows = [{"worker": h.host.name, "address": h.host.address} for h in found]
        show_json(
            [
                row | {"state": h.state, "seconds": h.seconds}
                for row, h in zip(rows, found)
            ]
        )
    else:
        lines = [(h.host.name, h.host.address, h.state) for h in found]
        show_rows(lines, ("worker", "address", "state"))
    return 0 if found and all(h.state == "healthy" for h in found) else 1
