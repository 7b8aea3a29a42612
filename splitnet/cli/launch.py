"""Write the file that starts a program and its workers on many hosts.

Slurm and Kubernetes start, watch and end the processes; splitnet only writes what they
need, so that workers and program find each other. The files are in `templates/`.
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
# Template and command that starts the job.
_ENGINES = {
    "slurm": ("slurm.sh.j2", "sbatch"),
    "kubernetes": ("kubernetes.yaml.j2", "kubectl apply -f"),
}


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
    from jinja2 import Environment, PackageLoader, StrictUndefined

    faults = []
    if not program:
        faults.append("name a command: splitnet launch -- python train.py")
    if not _NAME.fullmatch(name):
        faults.append(f"--name is lower case letters, digits and '-', not {name!r}")
    if preset is not None and preset not in PRESETS:
        faults.append(f"there is no preset {preset!r}. Known: {', '.join(PRESETS)}")
    if engine == "kubernetes" and not image:
        faults.append("a Kubernetes manifest needs --image")
    if faults:
        raise ConfigError(listed("a job cannot be written.", faults))
    variables = {
        "SPLITNET_ALLOW_REMOTE": "1",
        "SPLITNET_GPUS_PER_HOST": str(gpus_per_node),
    }
    if preset:
        variables["SPLITNET_GPU_PRESET"] = preset
    if engine == "kubernetes":
        variables |= {
            "SPLITNET_PORT": "2222",
            "SPLITNET_STATEFUL_SET": f"{name}-worker",
            "SPLITNET_SERVICE": name,
            "SPLITNET_WORKERS": str(nodes),
            "SPLITNET_CLIENT": f"{name}-client.{name}:2222",
        }
    template, start = _ENGINES[engine]
    environment = Environment(
        loader=PackageLoader("splitnet.cli"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quote": shlex.quote, "json": json.dumps}
    text = environment.get_template(template).render(
        name=name,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        max_restarts=max_restarts,
        program=program,
        image=image,
        variables=variables,
    )
    if out is None:
        print(text, end="")
        return 0
    out.write_text(text, encoding="utf-8")
    print(f"wrote {out}; start it: {start} {out}")
    return 0
