"""Write the file that starts a program and its workers on many hosts.

Slurm and Kubernetes start, watch and end the processes; splitnet only writes what they
need, so that workers and program find each other.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from splitnet.core.cluster import PRESETS
from splitnet.core.errors import ConfigError, listed

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?")

# A worker on each host by srun, the program on the first host.
_SBATCH = """#!/bin/bash
# A worker of splitnet on each host, and one program that uses them all.
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{gpu_line}#SBATCH --signal=B:TERM@60
#
# TensorFlow's servers have no password and no encryption: whoever reaches their ports
# can run any code as you. Admit the hosts of the job only, on each host as root:
#   nft add rule inet filter input ip saddr != NETWORK tcp dport 2222-2299 drop
# or give each host an address of a WireGuard network. See docs/machines.md.
set -u
{exports}
export SPLITNET_PORT="${{SPLITNET_PORT:-2222}}"
export SPLITNET_CLIENT="${{SLURMD_NODENAME:-$(hostname)}}:$SPLITNET_PORT"

program=
stopped=
trap 'stopped=1; [ -n "$program" ] && kill -TERM "$program" 2>/dev/null' TERM INT

for attempt in $(seq 0 {max_restarts}); do
  srun --kill-on-bad-exit=1 splitnet worker &
  workers=$!
  # Its GPUs belong to the worker of this host.
  CUDA_VISIBLE_DEVICES=-1 {program} &
  program=$!
  while kill -0 "$program" 2>/dev/null; do wait "$program"; code=$?; done
  kill -TERM "$workers" 2>/dev/null; wait "$workers" 2>/dev/null
  if [ "$code" -eq 0 ] || [ -n "$stopped" ]; then break; fi
  echo "splitnet: attempt $attempt ended with code $code" >&2
done
exit "$code"
"""

# A StatefulSet of workers, a Job for the program, and who may reach them.
_MANIFEST = """# Workers and program of {name}.
# TensorFlow's servers have no password: the NetworkPolicy admits this job's
# pods only. Your cluster's network plugin must enforce policies.
---
apiVersion: v1
kind: Service
metadata: {{name: "{name}", labels: {{splitnet-job: "{name}"}}}}
spec:
  clusterIP: None
  selector: {{splitnet-job: "{name}"}}
  publishNotReadyAddresses: true
  ports: [{{name: grpc, port: 2222}}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: {name}-worker, labels: {{splitnet-job: "{name}"}}}}
spec:
  serviceName: "{name}"
  replicas: {nodes}
  podManagementPolicy: Parallel
  selector: {{matchLabels: {{splitnet-job: "{name}", role: worker}}}}
  template:
    metadata: {{labels: {{splitnet-job: "{name}", role: worker}}}}
    spec:
      automountServiceAccountToken: false
      containers:
      - name: worker
        image: {image}
        command: [splitnet, worker]
        resources: {{limits: {limits}}}
        env:
{env}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}-client, labels: {{splitnet-job: "{name}"}}}}
spec:
  backoffLimit: {max_restarts}
  template:
    metadata: {{labels: {{splitnet-job: "{name}", role: client}}}}
    spec:
      automountServiceAccountToken: false
      hostname: {name}-client
      subdomain: "{name}"
      restartPolicy: Never
      containers:
      - name: client
        image: {image}
        command: {program}
        env:
{env}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: "{name}", labels: {{splitnet-job: "{name}"}}}}
spec:
  podSelector: {{matchLabels: {{splitnet-job: "{name}"}}}}
  policyTypes: [Ingress]
  ingress:
  - from: [{{podSelector: {{matchLabels: {{splitnet-job: "{name}"}}}}}}]
"""


def launch(
    program: Annotated[list[str] | None, Argument(metavar="-- COMMAND ...")] = None,
    engine: Annotated[
        Literal["slurm", "kubernetes"], Option(help="What starts the processes.")
    ] = "slurm",
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
    if engine == "kubernetes" and not image:
        faults.append("a Kubernetes manifest needs --image")
    if faults or not program:
        raise ConfigError(listed("a job cannot be written.", faults))
    variables = {
        "SPLITNET_ALLOW_REMOTE": "1",
        "SPLITNET_GPUS_PER_HOST": str(gpus_per_node),
    } | ({"SPLITNET_GPU_PRESET": preset} if preset else {})
    shared = {"name": name, "nodes": nodes, "max_restarts": max_restarts}
    if engine == "slurm":
        text = _SBATCH.format(
            **shared,
            program=shlex.join(program),
            gpu_line=f"#SBATCH --gpus-per-node={gpus_per_node}\n" * bool(gpus_per_node),
            exports="\n".join(
                f"export {key}={shlex.quote(value)}" for key, value in variables.items()
            ),
        )
    else:
        variables |= {
            "SPLITNET_PORT": "2222",
            "SPLITNET_STATEFUL_SET": f"{name}-worker",
            "SPLITNET_SERVICE": name,
            "SPLITNET_WORKERS": str(nodes),
            "SPLITNET_CLIENT": f"{name}-client.{name}:2222",
        }
        limits = {"nvidia.com/gpu": gpus_per_node} if gpus_per_node else {}
        env = [{"name": key, "value": value} for key, value in variables.items()]
        text = _MANIFEST.format(
            **shared,
            program=json.dumps(program),  # JSON is YAML as well
            image=json.dumps(image),
            limits=json.dumps(limits),
            env="\n".join(f"        - {json.dumps(one)}" for one in env),
        )
    if out is None:
        print(text, end="")
        return 0
    out.write_text(text, encoding="utf-8")
    start = "sbatch" if engine == "slurm" else "kubectl apply -f"
    print(f"wrote {out}; start it: {start} {out}")
    return 0
