"""What a command works on: a program, a model or a saved file, and a machine."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import splitnet as sn
from splitnet.cli.console import import_tensorflow
from splitnet.cli.options import TARGET_HELP
from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError, DeviceError, PlanFileError
from splitnet.core.serialization import read_json

if TYPE_CHECKING:
    from splitnet.core.plan import Plan

__all__ = ["Machine", "check_target", "kind_of_file", "load_plan_file", "load_source"]


@dataclass(frozen=True, slots=True)
class Machine:
    """The options that describe a machine."""

    cluster: str | None = None
    preset: str | None = None
    memory: str | None = None
    link: str | None = None
    stand_ins: int = 0

    def described(self) -> Cluster | None:
        """The machine that the options describe; None if they describe none.

        Raises:
            DeviceError: there is no such machine, or there are two.
        """
        from_file = self.cluster is not None and self.cluster.endswith(".toml")
        if self.cluster and self.stand_ins:
            raise DeviceError(
                "--cluster and --stand-ins are two machines; give one of them."
            )
        if (self.preset or self.memory or self.link) and (
            not self.cluster or from_file
        ):
            raise DeviceError(
                "--preset, --memory and --link belong to a list: --cluster '2*gpu,cpu'."
            )
        if not self.cluster:
            return self.local() if self.stand_ins else None
        if from_file:
            return Cluster.load(self.cluster)
        names = [name for name in self.cluster.split(",") if name.strip()]
        return Cluster.of(
            *names, preset=self.preset, memory=self.memory, link=self.link
        )

    def local(self) -> Cluster:
        """Find the devices of this machine, with stand-ins if asked for."""
        import_tensorflow()
        from splitnet.tf.runtime.devices import local_cluster

        return local_cluster(stand_in_gpus=self.stand_ins)


def kind_of_file(path: str) -> tuple[str, Any]:
    """Read a JSON file; tell a plan, a graph and a workload apart by their fields.

    Returns:
        "plan", "graph", "workload" or "", and the values.

    Raises:
        PlanFileError: not there, not text, or not JSON.
    """
    values = read_json(path, "file")
    fields = set(values) if isinstance(values, dict) else set()
    if "splitnet_plan" in fields:
        return "plan", values
    if fields & {"nodes", "maxFPGAs"}:
        return "workload", values
    return ("graph" if "calls" in fields else ""), values


def load_plan_file(path: str) -> "Plan":
    """Load a saved plan; a missing file is named before the planner is imported.

    Raises:
        PlanFileError: the file is missing or is no plan.
    """
    if not Path(path).exists():
        raise PlanFileError(f"there is no file {path!r}.")
    return sn.load_plan(path)


def check_target(target: str) -> None:
    """Name a target that cannot be found, before TensorFlow is imported.

    Raises:
        DeclarationError: it is no file, no module, or nothing of the kind.
    """
    if target.endswith((".keras", ".h5", ".json")):
        if not Path(target).exists():
            error = PlanFileError if target.endswith(".json") else DeclarationError
            raise error(f"there is no file {target!r}.")
        return
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise DeclarationError(f"cannot tell what {target!r} is. Give {TARGET_HELP}")
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise DeclarationError(f"there is no file {place!r}.")
        return
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.util.find_spec(place.partition(".")[0])
    except ValueError:
        found = None
    if found is None:
        raise DeclarationError(f"there is no module {place!r}.")


def load_source(target: str) -> Any:
    """The Net, model or Graph that a target names.

    Raises:
        DeclarationError: there is none, or it is something else.
    """
    check_target(target)
    import_tensorflow()
    if target.endswith((".keras", ".h5")):
        return _saved_model(target)
    place, _, name = target.rpartition(":")
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

    return isinstance(value, sn.Net | sn.Graph | keras.Model)


def _saved_model(path: str) -> Any:
    import keras

    try:
        return keras.models.load_model(path)
    except (ValueError, TypeError, OSError) as error:
        raise DeclarationError(
            f"Keras cannot load {path!r}: {error}\nFor a model with layers of its own, "
            "name the program that has them: file.py:name."
        ) from None


def _module(place: str) -> ModuleType:
    """Import a module by file or by dotted name; its own exceptions pass."""
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name and place.startswith(error.name):
                raise DeclarationError(f"there is no module {place!r}.") from None
            raise
    path = Path(place).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{place!r} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module
