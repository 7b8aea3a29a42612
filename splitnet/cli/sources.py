"""What a command is pointed at: programs, models, saved files, and machines."""

import importlib
import importlib.util
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from splitnet.cli.screen import hush
from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError, DeviceError, PlanFileError

__all__ = [
    "add_cluster_options",
    "cluster_of",
    "kind_of_file",
    "load_json",
    "load_source",
]

TARGET_HELP = (
    "file.py:name, package.module:name (a Net, a Keras model, or a function that "
    "returns one) or model.keras"
)
_MOST_JSON_BYTES = 2_000_000_000


def add_cluster_options(parser: ArgumentParser) -> None:
    """Add the options that describe a machine."""
    group = parser.add_argument_group("machine (this one unless said)")
    group.add_argument(
        "--cluster",
        metavar="WHAT",
        help="a machine that is not here: box.toml, or a list such as '2*gpu,cpu'",
    )
    group.add_argument("--memory", help="memory of each GPU of the list: '16 GiB'")
    group.add_argument("--link", help="bandwidth between its devices: '25 GB/s'")
    group.add_argument(
        "--stand-ins",
        type=int,
        default=0,
        metavar="N",
        help="let N CPU devices of this machine stand in for GPUs",
    )


def cluster_of(arguments: Namespace, *, here: bool = True) -> Cluster | None:
    """The machine that the options describe; None if they do not and `here` is false.

    Raises:
        DeviceError: the options contradict one another or describe no machine.
    """
    described = arguments.cluster
    if described and arguments.stand_ins:
        raise DeviceError(
            "--cluster and --stand-ins are two machines; say one of them."
        )
    if not described and (arguments.memory or arguments.link):
        raise DeviceError("--memory and --link belong to --cluster '2*gpu,cpu'.")
    if described and described.endswith(".toml"):
        return Cluster.load(described)
    if described:
        names = [name for name in described.split(",") if name.strip()]
        return Cluster.of(*names, memory=arguments.memory, link=arguments.link)
    if not here and not arguments.stand_ins:
        return None
    hush()
    from splitnet.tf.runtime.devices import local_cluster

    return local_cluster(stand_in_gpus=arguments.stand_ins)


def load_json(path: str) -> Any:
    """Read a JSON file of a stranger.

    Raises:
        PlanFileError: not there, not text, or not JSON.
    """
    try:
        file = Path(path)
        if file.stat().st_size > _MOST_JSON_BYTES:
            raise PlanFileError(f"the file {path!r} is larger than any plan.")
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanFileError(f"cannot read {path!r}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"the file {path!r} is not JSON: {error}.") from None


def kind_of_file(values: Any) -> str | None:
    """Tell a saved plan, a saved graph and a workload apart by their fields."""
    if not isinstance(values, dict):
        return None
    if "splitnet_plan" in values:
        return "plan"
    if "nodes" in values or "maxFPGAs" in values:
        return "workload"
    return "graph" if "calls" in values else None


def load_source(target: str) -> Any:
    """The Net, model or Graph that a target names.

    Raises:
        DeclarationError: there is none, or it is something else.
    """
    if target.endswith((".keras", ".h5")):
        return _saved_model(target)
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise DeclarationError(
            f"cannot tell what {target!r} is. Write {TARGET_HELP}; or the JSON file of "
            "a plan, a graph or a workload."
        )
    hush()
    module = _module(place)
    if not hasattr(module, name):
        names = [n for n, v in vars(module).items() if _is_source(v)]
        known = f" It has: {', '.join(names)}." if names else ""
        raise DeclarationError(f"{place!r} has no name {name!r}.{known}")
    value = getattr(module, name)
    if not _is_source(value) and isinstance(value, Callable):
        value = value()
    if not _is_source(value):
        raise DeclarationError(
            f"{target!r} is neither a Net, a Keras model nor a Graph, nor a function "
            f"without arguments that returns one. Found: {type(value).__name__}."
        )
    return value


def _is_source(value: Any) -> bool:
    import keras

    from splitnet.core.graph import Graph
    from splitnet.core.net import Net

    return isinstance(value, Net | Graph | keras.Model)


def _saved_model(path: str) -> Any:
    if not Path(path).is_file():
        raise DeclarationError(f"there is no file {path!r}.")
    hush()
    import keras

    try:
        return keras.models.load_model(path)
    except (ValueError, TypeError, OSError) as error:
        raise DeclarationError(
            f"Keras cannot load {path!r}: {error}\nA model with layers of its own is "
            "named from the program that has them: file.py:name."
        ) from None


def _module(place: str) -> ModuleType:
    """Import a module by file or by dotted name; what it raises is its author's."""
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise DeclarationError(f"there is no file {place!r}.")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise DeclarationError(f"{place!r} is not a Python file.")
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.parent))
        sys.modules.setdefault(path.stem, module)
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and place.startswith(error.name):
            raise DeclarationError(f"there is no module {place!r}.") from None
        raise
