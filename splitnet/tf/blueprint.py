"""One form for every source: a functional model, and the part of each of its calls.

A net's blueprint is a template of copies without values; a Keras model's is the model
itself, over its own nodes. Both are read, placed and copied by the same code.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from splitnet.core.errors import DeclarationError, listed
from splitnet.core.graph import Part
from splitnet.core.net import Branch, Net, Ref, Towers, raise_faults
from splitnet.core.replication import tower_part
from splitnet.tf.copying import functional_of
from splitnet.tf.flow import Flow, Nested, flow_of
from splitnet.tf.internals import keras_api
from splitnet.tf.trace import Trace, trace_of

__all__ = ["Blueprint", "Site", "blueprint_of", "outline"]

_SCOPE = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")  # what tf.name_scope takes


@dataclass(frozen=True, slots=True)
class Site:
    """One call: its name, its part, and the node of the model that it is."""

    call: str
    part: str
    node: Any


@dataclass(frozen=True)
class Blueprint:
    """A functional model with the parts of its calls, in running order.

    `flow` is what it runs, `sites` holds a site per call, inputs first; `towers` the
    parts that are replicated.
    """

    name: str
    model: Any
    flow: Flow
    parts: tuple[Part, ...]
    sites: tuple[Site, ...]
    towers: Mapping[str, Towers] = field(default_factory=dict)


def blueprint_of(
    source: Any, nested: Nested = "keep", *, strict: bool = True
) -> Blueprint:
    """Bring a net or a Keras model to one form; nothing is allocated.

    Args:
        source: a net, whose branches are its parts, or a Keras model.
        nested: which models inside a Keras model are opened; see `flow_of`.
        strict: as in `flow_of`.

    Raises:
        DeclarationError: with every fault of the declaration.
    """
    if isinstance(source, Net):
        return _of_net(source)
    if isinstance(source, keras.Model):
        return _of_model(source, nested, strict=strict)
    raise DeclarationError(
        "a model is a splitnet.Net or a keras.Model. Received: "
        f"{source!r} ({type(source).__name__})."
    )


def outline(net: Net, ref: Ref) -> list[int | str] | None:
    """The keys of what a reference stands for; None for a single tensor."""
    trace = trace_of(net)
    trace.follow(net, ref.number)
    found = trace.look_up(ref)
    if found is None:
        raise_faults(net.name, [*net.faults(), *trace.faults])
    if isinstance(found, dict):
        return list(found)
    if isinstance(found, list | tuple):
        return list(range(len(found)))
    return None


def _of_net(net: Net) -> Blueprint:
    faults = net.faults()
    trace = trace_of(net)
    trace.follow(net, len(net.branches) - 1)
    faults += trace.faults
    if faults:
        raise_faults(net.name, faults)
    with keras_api.without_values():
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
    trace.copies.borrow()
    parts = tuple(part for branch in net.branches for part in _parts(branch))
    order = {part.name: i for i, part in enumerate(parts)}
    flow = flow_of(model)
    nodes = _input_nodes(model) + flow.nodes
    nodes.sort(key=lambda node: order[trace.part_of[id(node)]])
    sites = _named([(trace.part_of[id(node)], node) for node in nodes], prefix=True)
    towers = {b.name: b.towers for b in net.branches if b.towers is not None}
    return Blueprint(net.name, model, flow, parts, sites, towers)


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
        layers = getattr(node.operation, "_flatten_layers", lambda: ())()
        for layer in layers:
            users.setdefault(id(layer), []).append(trace.part_of.get(id(node), ""))
    faults = []
    for branch in splits:
        others = [other.name for other in splits if other.body is branch.body]
        others += users.get(id(trace.copies.of(branch.body)), [])
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


def _of_model(source: Any, nested: Nested, *, strict: bool) -> Blueprint:
    model = functional_of(source)
    flow = flow_of(model, nested, strict=strict)
    nodes = _input_nodes(model) + flow.nodes
    unbuilt = [
        node.operation.name
        for node in nodes
        if not getattr(node.operation, "built", True)
    ]
    if unbuilt:
        raise DeclarationError(
            listed(
                f"model {model.name!r} has layers that are not built.",
                [f"layer {name!r} has no variables yet" for name in unbuilt],
            )
        )
    sites = _named([(None, node) for node in nodes], prefix=False)
    parts = tuple(
        Part(site.part, "input" if site.node.is_input else "branch", _home(site.node))
        for site in sites
    )
    return Blueprint(model.name, model, flow, parts, sites)


def _home(node: Any) -> tuple[str, ...]:
    return ("cpu",) if node.is_input else ("auto",)


def _input_nodes(model: Any) -> list[Any]:
    return [keras_api.producer(tensor) for tensor in model.inputs]


def _named(pairs: list[tuple[str | None, Any]], *, prefix: bool) -> tuple[Site, ...]:
    """Name each call for its layer; a second call of it is "name@2".

    A call inside an opened model is "model/name".
    """
    taken: Counter[str] = Counter()
    sites = []
    for part, node in pairs:
        name = getattr(node, "path", "") + node.operation.name
        if prefix and not node.is_input:
            name = f"{part}/{name}"
        taken[name] += 1
        call = name if taken[name] == 1 else f"{name}@{taken[name]}"
        sites.append(Site(call, call if part is None else part, node))
    return tuple(sites)
