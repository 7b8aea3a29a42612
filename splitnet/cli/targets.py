"""What a command works on: a program, a model, or a saved file that is read once."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import splitnet as sn
from splitnet.cli.console import import_tensorflow, local_devices
from splitnet.cli.options import TARGET_HELP, Costing, Machine
from splitnet.core.cluster import Cluster
from splitnet.core.errors import (
    DeclarationError,
    DeviceError,
    PlanFileError,
    SplitnetError,
)
from splitnet.core.serialization import decode, load_json

__all__ = ["Target", "check_target", "load_source"]


class Target:
    """A program, a model, or what a JSON file holds: a plan, a graph or a workload.

    `kind` is "plan", "graph", "workload" or, for what has to be imported, "model".
    `value` is what the file holds, None for a model.

    Raises:
        DeclarationError: it cannot be found.
        PlanFileError: a JSON file that is none of them.
    """

    def __init__(self, text: str) -> None:
        self.text, self.kind, self.value = text, "model", None
        if text.endswith(".json"):
            self.kind, self.value = load_json(text, "file", self._saved)
        else:
            check_target(text)

    def _saved(self, values: Any) -> tuple[str, Any]:
        """Tell files apart by their fields."""
        found = set(values) if isinstance(values, dict) else set()
        if "splitnet_plan" in found:
            from splitnet.planner.plan_file import plan_from_dict

            return "plan", plan_from_dict(values)
        if found & {"nodes", "maxFPGAs"}:
            from splitnet.planner.workloads import workload_of

            return "workload", workload_of(values, name=Path(self.text).stem)
        if "calls" in found:
            from splitnet.core.graph import Graph

            return "graph", decode(values, Graph, "graph")
        raise PlanFileError(
            "it is neither a plan, a graph nor a workload: it has none of the fields "
            "'splitnet_plan', 'calls', 'nodes'."
        )

    def opened(self, machine: Machine, costing: Costing) -> tuple[Any, Cluster]:
        """What to plan and for which machine; of a saved file the source is a Graph.

        Raises:
            DeclarationError: another batch than that of a saved file.
            DeviceError: there is no machine, or there are two.
        """
        if costing.batch is not None and self.kind != "model":
            raise DeclarationError(
                f"{self.text!r} has its own batch; leave --batch out, or name the "
                "program of the model."
            )
        cluster = machine.described()
        if self.kind == "model":
            # The machine first: stand-ins must be made before a program builds layers.
            cluster = cluster or local_devices()
            return load_source(self.text), cluster
        if self.kind == "plan":
            return self.value.graph, cluster or self.value.cluster
        if self.kind == "graph" and cluster is not None:
            return self.value, cluster
        if self.kind == "graph":
            raise DeviceError(
                "a saved graph has no machine; add --gpus 2, --cluster '2*gpu,cpu', "
                "--cluster box.toml or --stand-ins 2."
            )
        if cluster is not None:
            raise DeviceError(
                "a workload file includes its machine; leave --cluster out."
            )
        from splitnet.planner.workloads import graph_of_workload

        return graph_of_workload(self.value)


def check_target(target: str) -> None:
    """Name a program or model that cannot be found, before TensorFlow is imported.

    Raises:
        DeclarationError: it is no file, no module, or nothing of the kind.
    """
    if target.endswith(".json"):
        raise DeclarationError(
            f"this command runs a model, and the JSON file {target!r} has none; name "
            "the model or its program."
        )
    place, colon, name = target.rpartition(":")
    file = target if target.endswith((".keras", ".h5")) else place
    if file is place and not (colon and place and name.isidentifier()):
        raise DeclarationError(f"cannot tell what {target!r} is. Give {TARGET_HELP}")
    if file.endswith((".keras", ".h5", ".py")):
        if not Path(file).is_file():
            raise DeclarationError(f"there is no file {file!r}.")
        return
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.util.find_spec(place.partition(".")[0])
    except ValueError:
        found = None
    if found is None:
        raise DeclarationError(f"there is no module {place!r}.")


def load_source(target: str) -> Any:
    """The Net, model or Graph that a program or a saved model has.

    Raises:
        DeclarationError: there is none, or it is something else.
    """
    import_tensorflow()
    if target.endswith((".keras", ".h5")):
        return _saved_model(target)
    place, _, name = target.rpartition(":")
    try:
        value = _named(_module(place), name, place)
        if not _is_source(value) and callable(value):
            value = value()
    except SplitnetError:
        raise
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        raise DeclarationError(
            f"{target!r} raised {type(error).__name__}: {error}\n{where}"
        ) from None
    if not _is_source(value):
        raise DeclarationError(
            f"{target!r} is neither a Net, a Keras model nor a Graph, nor a function "
            f"without arguments that returns one. Found: {type(value).__name__}."
        )
    return value


def _named(module: ModuleType, name: str, place: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    names = [n for n, v in vars(module).items() if _is_source(v)]
    known = f" It has: {', '.join(names)}." if names else ""
    raise DeclarationError(f"{place!r} has no name {name!r}.{known}")


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
    """Import a module by file or by dotted name."""
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module
