"""Write the file that starts a program and its workers on many hosts.

Slurm and Kubernetes start, watch and end the processes; splitnet only writes what they
need, so that workers and program find each other.
"""

import json
import re
import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from splitnet.core.cluster import PRESETS
from splitnet.core.errors import ConfigError, listed

__all__ = ["launch"]

_PORT = 2222
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?")


class Engine(StrEnum):
    """What starts the processes."""

    slurm = "slurm"
    kubernetes = "kubernetes"


def launch(
    program: Annotated[list[str] | None, Argument(metavar="-- COMMAND ...")] = None,
    engine: Annotated[Engine, Option(help="What starts the processes.")] = Engine.slurm,
    nodes: Annotated[int, Option(metavar="N", min=1, help="Hosts with a worker.")] = 2,
    gpus_per_node: Annotated[
        int, Option(metavar="N", min=0, help="GPUs of each host.")
    ] = 0,
    preset: Annotated[
        str | None, Option(metavar="CARD", help="Model of the GPUs: A100, H100 ...")
    ] = None,
    name: Annotated[
        str, Option(metavar="NAME", help="Of the job: lower case, digits and '-'.")
    ] = "splitnet",
    image: Annotated[
        str | None,
        Option(metavar="IMAGE", help="Kubernetes: container with splitnet in it."),
    ] = None,
    max_restarts: Annotated[
        int, Option(metavar="N", min=0, help="Starts of the program after a failure.")
    ] = 3,
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE", help="Write it here.")
    ] = None,
) -> int:
    """Write an sbatch script or a Kubernetes manifest for a program.

    Each host serves its devices by `splitnet worker`; the program runs once and calls
    sn.connect(). Nothing is started: hand the file to sbatch or kubectl.
    """
    faults = []
    if not program:
        faults.append("name a command: splitnet launch -- python train.py")
    if not _NAME.fullmatch(name):
        faults.append(f"--name is lower case letters, digits and '-', not {name!r}")
    if preset is not None and preset not in PRESETS:
        faults.append(f"there is no preset {preset!r}. Known: {', '.join(PRESETS)}")
    if engine is Engine.kubernetes and not image:
        faults.append("a Kubernetes manifest needs --image")
    if faults or not program:
        raise ConfigError(listed("a job cannot be written.", faults))
    variables = {
        "SPLITNET_ALLOW_REMOTE": "1",
        "SPLITNET_GPUS_PER_HOST": str(gpus_per_node),
    } | ({"SPLITNET_GPU_PRESET": preset} if preset else {})
    job = (program, nodes, gpus_per_node, name, max_restarts, variables)
    text = _sbatch(*job) if engine is Engine.slurm else _manifest(*job, str(image))
    if out is None:
        print(text, end="")
        return 0
    out.write_text(text, encoding="utf-8")
    start = "sbatch" if engine is Engine.slurm else "kubectl apply -f"
    print(f"wrote {out}; start it: {start} {out}")
    return 0


def _sbatch(
    program: list[str],
    nodes: int,
    gpus: int,
    name: str,
    max_restarts: int,
    variables: Mapping[str, str],
) -> str:
    """A worker on each host by srun, the program on the first host."""
    gpu_line = f"#SBATCH --gpus-per-node={gpus}\n" if gpus else ""
    exports = "\n".join(f"export {k}={shlex.quote(v)}" for k, v in variables.items())
    return f"""#!/bin/bash
# A worker of splitnet on each host, and one program that uses them all.
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{gpu_line}#SBATCH --signal=B:TERM@60
#
# TensorFlow's servers have no password and no encryption: whoever reaches their ports
# can run any code as you. Admit the hosts of the job only, on each host as root:
#   nft add rule inet filter input ip saddr != NETWORK tcp dport {_PORT}-2299 drop
# or give each host an address of a WireGuard network. See docs/machines.md.
set -u
{exports}
export SPLITNET_PORT="${{SPLITNET_PORT:-{_PORT}}}"
export SPLITNET_CLIENT="${{SLURMD_NODENAME:-$(hostname)}}:$SPLITNET_PORT"

program=
stopped=
trap 'stopped=1; [ -n "$program" ] && kill -TERM "$program" 2>/dev/null' TERM INT

for attempt in $(seq 0 {max_restarts}); do
  srun --kill-on-bad-exit=1 splitnet worker &
  workers=$!
  # Its GPUs belong to the worker of this host.
  CUDA_VISIBLE_DEVICES=-1 {shlex.join(program)} &
  program=$!
  while kill -0 "$program" 2>/dev/null; do wait "$program"; code=$?; done
  kill -TERM "$workers" 2>/dev/null; wait "$workers" 2>/dev/null
  if [ "$code" -eq 0 ] || [ -n "$stopped" ]; then break; fi
  echo "splitnet: attempt $attempt ended with code $code" >&2
done
exit "$code"
"""


def _manifest(
    program: list[str],
    nodes: int,
    gpus: int,
    name: str,
    max_restarts: int,
    variables: Mapping[str, str],
    image: str,
) -> str:
    """A StatefulSet of workers, a Job for the program, and who may reach them."""
    of_the_job = {
        "SPLITNET_PORT": str(_PORT),
        "SPLITNET_STATEFUL_SET": f"{name}-worker",
        "SPLITNET_SERVICE": name,
        "SPLITNET_WORKERS": str(nodes),
        "SPLITNET_CLIENT": f"{name}-client.{name}:{_PORT}",
    }
    every = {**variables, **of_the_job}.items()
    env = [{"name": key, "value": value} for key, value in every]
    labels = {"splitnet-job": name}
    workers = labels | {"role": "worker"}
    pods = {"podSelector": {"matchLabels": labels}}

    def pod(command: list[str], role: str, **more: object) -> dict[str, object]:
        box = {"name": role, "image": image, "command": command, "env": env} | more
        return {"automountServiceAccountToken": False, "containers": [box]}

    def thing(kind: str, version: str, name: str, **spec: object) -> dict[str, object]:
        meta = {"name": name, "labels": labels}
        return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}

    limits = {"nvidia.com/gpu": gpus} if gpus else {}
    worker = pod(["splitnet", "worker"], "worker", resources={"limits": limits})
    client = pod(program, "client") | {
        "hostname": f"{name}-client",
        "subdomain": name,
        "restartPolicy": "Never",
    }
    things = [
        thing(
            "Service",
            "v1",
            name,
            clusterIP="None",
            selector=labels,
            publishNotReadyAddresses=True,
            ports=[{"name": "grpc", "port": _PORT}],
        ),
        thing(
            "StatefulSet",
            "apps/v1",
            f"{name}-worker",
            serviceName=name,
            replicas=nodes,
            podManagementPolicy="Parallel",
            selector={"matchLabels": workers},
            template={"metadata": {"labels": workers}, "spec": worker},
        ),
        thing(
            "Job",
            "batch/v1",
            f"{name}-client",
            backoffLimit=max_restarts,
            template={
                "metadata": {"labels": labels | {"role": "client"}},
                "spec": client,
            },
        ),
        thing(
            "NetworkPolicy",
            "networking.k8s.io/v1",
            name,
            **pods,
            policyTypes=["Ingress"],
            ingress=[{"from": [pods]}],
        ),
    ]
    head = (
        f"# Workers and program of {name}. JSON is YAML as well.\n"
        "# TensorFlow's servers have no password: the NetworkPolicy admits this job's\n"
        "# pods only. Your cluster's network plugin must enforce policies.\n"
    )
    return head + "".join(f"---\n{json.dumps(one, indent=2)}\n" for one in things)
