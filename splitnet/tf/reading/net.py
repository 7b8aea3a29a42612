"""The functional model of a net: a template of copies without values."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras

from splitnet.core.graph import Part
from splitnet.core.net import Branch, Net, raise_faults
from splitnet.core.replication import tower_part
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.trace import Trace, trace_of

__all__ = ["NetModel", "model_of"]

_SCOPE = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")  # what tf.name_scope takes


@dataclass(frozen=True, slots=True, eq=False)
class NetModel:
    """A net as a functional model without values.

    `part_of` has the part of each node by its id, `originals` the user's layer that
    each layer of the model stands for.
    """

    model: Any
    parts: tuple[Part, ...]
    part_of: Mapping[int, str]
    originals: Mapping[int, Any]


def model_of(net: Net) -> NetModel:
    """Trace all branches of a net and join them to one functional model.

    Raises:
        DeclarationError: with every fault of the declaration.
    """
    faults = net.faults()
    trace = trace_of(net, len(net.branches) - 1)
    faults += trace.faults
    if faults:
        raise_faults(net.name, faults)
    with trace.building():
        outputs = _outputs(net, trace)
        raise_faults(net.name, trace.faults)
        inputs = [
            trace.results[i] for i, b in enumerate(net.branches) if b.kind == "input"
        ]
        reached = _reached(keras.tree.flatten([outputs, inputs]))
        raise_faults(net.name, _cut_and_whole(net, trace, reached))
        raise_faults(net.name, _name_clashes(reached))
        struct = inputs[0] if len(inputs) == 1 else inputs
        model = keras.Model(struct, outputs, name=_model_name(net.name))
    parts = tuple(part for branch in net.branches for part in _parts(branch))
    originals = {id(copy): old for old, copy in trace.cloner.layers()}
    return NetModel(model, parts, trace.part_of, originals)


def _parts(branch: Branch) -> list[Part]:
    """The part of a branch; of a split layer, a part for each slice and their join."""
    own = Part(
        branch.name, branch.kind, branch.on, branch.near, branch.apart, branch.where
    )
    if not branch.slices:
        return [own]
    layer = str(getattr(branch.body, "name", ""))
    options = (("split", str(len(branch.slices))), ("layer", layer))
    slices = [
        Part(tower_part(branch.name, i), "slice", on, where=branch.where)
        for i, on in enumerate(branch.slices)
    ]
    return [*slices, replace(own, kind="merge", options=options)]


def _model_name(name: str) -> str:
    """The nearest name that TensorFlow takes for a scope."""
    known = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return known if known.strip("_") else "net"


def _outputs(net: Net, trace: Trace) -> Any:
    """The model's outputs; where names matter, each is named by its branch."""
    made = []
    for output in net.outputs:
        tensor = trace.look_up(output.ref)
        for one in keras.tree.flatten(tensor):
            wanted = output.name
            if wanted is None and len(net.outputs) > 1:
                path = [output.ref.name, *map(str, output.ref.path)]
                wanted = _model_name("_".join(path))
            made.append(_called(one, wanted, trace, output.ref.name))
    return made[0] if len(made) == 1 else made


def _called(tensor: Any, name: str | None, trace: Trace, part: str) -> Any:
    """The tensor under another name, by an identity layer of its branch."""
    node = keras_api.producer(tensor)
    if name is None or node.operation.name == name:
        return tensor
    renamed = keras.layers.Identity(name=name)(tensor)
    trace.part_of[id(keras_api.producer(renamed))] = part
    return renamed


def _reached(tensors: Iterable[Any]) -> list[Any]:
    """The nodes that symbolic tensors come from, the last first."""
    found: dict[int, Any] = {}
    todo = list(tensors)
    while todo:
        node = keras_api.producer(todo.pop())
        if node is not None and id(node) not in found:
            found[id(node)] = node
            todo += node.input_tensors
    return list(found.values())


def _cut_and_whole(net: Net, trace: Trace, nodes: list[Any]) -> list[str]:
    """Layers that a split cuts and another branch calls: they would not be one."""
    splits = [branch for branch in net.branches if branch.slices]
    users: dict[int, list[str]] = {}
    for node in nodes if splits else ():
        layers = keras_api.sublayers(node.operation)
        for layer in layers:
            users.setdefault(id(layer), []).append(trace.part_of.get(id(node), ""))
    faults = []
    for branch in splits:
        others = [other.name for other in splits if other.body is branch.body]
        others += users.get(id(trace.cloner.of(branch.body)), [])
        if others := [name for name in dict.fromkeys(others) if name != branch.name]:
            faults.append(
                f"{branch.where}: split {branch.name!r} cuts layer "
                f"{branch.body.name!r}, which {', '.join(map(repr, others))} uses as "
                "well; its weights would no longer be shared. Use net.branch for "
                "both, or a layer for each."
            )
    return faults


def _name_clashes(nodes: list[Any]) -> list[str]:
    """Two different layers of one name, which no model can save."""
    operations = {id(node.operation): node.operation for node in nodes}
    names = [operation.name for operation in operations.values()]
    faults = [
        f"{n} different layers, inputs or outputs are named {name!r}; names are unique "
        "in a model."
        for name, n in sorted(Counter(names).items())
        if n > 1
    ]
    return faults + [
        f"TensorFlow takes no layer or output named {operation.name!r}: use letters "
        "from a to z, digits and any of _ . -, beginning with a letter or digit."
        for operation in operations.values()
        if not isinstance(operation, keras.layers.InputLayer)
        and not _SCOPE.fullmatch(operation.name)
    ]
