"""A placed model, lowered once: what runs each of its calls and where; its runs.

A tensor is copied once to each device that reads it. The gradient of the copy is summed
there and crosses back once, to the device where the tensor was made.
"""

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from splitnet.core.cluster import Device
from splitnet.core.plan import Plan
from splitnet.core.replication import fold, tower_part, weights_part
from splitnet.simulator.microbatch import Pipeline
from splitnet.tf.internals import keras_api
from splitnet.tf.internals.keras_api import CARRIED, CARRIED_SCOPE, variables_of
from splitnet.tf.placement.device_function import canonical, device_of, transfer
from splitnet.tf.reading.flatten import Flow, Site

ATTRIBUTE = "_splitnet"
_numbers = itertools.count()  # one step may run several placed models


@dataclass(eq=False)
class Shared:
    """What several runs in one step have in common.

    `weights` maps (id of a variable, device) to its value there, `states` the id of a
    variable to (first value, latest value). Micro-batches have `turns`.
    """

    turns: Any = None
    traces: dict[Any, Any] = field(default_factory=dict)
    weights: dict[tuple[int, str], Any] = field(default_factory=dict)
    states: dict[int, tuple[Any, Any]] = field(default_factory=dict)


@dataclass(eq=False)
class Run:
    """The values of one run by the ids of symbolic tensors.

    `made_on` holds their devices; `extra` what runners keep for the rest of the run.
    `trains` says that only the gradients of trainable weights are asked for;
    `on_gradient` is called when the gradient of a part is.
    """

    tensors: dict[int, Any]
    context: Any
    shared: Shared
    trains: bool = False
    on_gradient: Callable[[], None] = lambda: None
    made_on: dict[int, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    _later: dict[int, Callable[[], None]] = field(default_factory=dict)
    _copies: dict[tuple[int, str], tuple[Any, Any]] = field(default_factory=dict)

    def give(self, tensor: Any, value: Any, device: str) -> None:
        """Note the value of a symbolic tensor and the device where it was made."""
        self.tensors[id(tensor)] = value
        self.made_on[id(tensor)] = device

    def give_later(self, tensor: Any, give: Callable[[], None]) -> None:
        """Note what gives the value of a symbolic tensor when it is first read."""
        self.tensors[id(tensor)] = None
        self._later[id(tensor)] = give

    def value(self, tensor: Any) -> Any:
        """The value of a symbolic tensor."""
        self._later.pop(id(tensor), lambda: None)()
        return self.tensors[id(tensor)]

    def arrive(self, tensor: Any, device: str) -> Any:
        """The value of a symbolic tensor on a device."""
        return self.moved(self.value(tensor), self.made_on.get(id(tensor), ""), device)

    def moved(self, value: Any, source: str, target: str) -> Any:
        """A value of one device on another, with what Keras attached to it."""
        if source == target or not tf.is_tensor(value):
            return value
        key = (id(value), target)
        if key not in self._copies:  # which keeps the value, so that its id stays
            copy = transfer(value, source, target)
            for name in CARRIED:
                if (attached := getattr(value, name, None)) is not None:
                    with tf.name_scope(CARRIED_SCOPE):
                        setattr(copy, name, transfer(attached, "", target))
            self._copies[key] = value, copy
        return self._copies[key][1]

    def weight(self, variable: Any, device: str) -> Any:
        """The value of a variable on a device, read once a step."""
        key, known, turns = id(variable), self.shared.weights, self.shared.turns
        if (key, device) not in known:
            home = device_of(variable)
            with turns.tape.stop_recording() if turns else contextlib.nullcontext():
                with tf.device(home):
                    value = tf.convert_to_tensor(variable.value)
                known[key, device] = transfer(value, home, device)
            if turns:
                turns.tape.watch(known[key, device])
        return known[key, device]

    def state(self, variable: Any, *, first: bool = False) -> Any:
        """The value of a state variable at this point of the step, or at its start."""
        if id(variable) not in self.shared.states:
            with tf.device(device_of(variable)):
                value = tf.identity(tf.convert_to_tensor(variable.value))
            self.shared.states[id(variable)] = (value, value)
        return self.shared.states[id(variable)][0 if first else 1]

    def assign(self, variable: Any, value: Any) -> None:
        """Give a variable a new value, at its home; a weight is read again then."""
        before, known = self.state(variable, first=True), self.shared.weights
        for key in [key for key in known if key[0] == id(variable)]:
            del known[key]
        with tf.device(device_of(variable)):
            variable.assign(value)
        self.shared.states[id(variable)] = (before, value)


@dataclass(frozen=True, slots=True)
class Replicas:
    """The keys of one branch's towers, of its weights' home and of its join."""

    keys: tuple[str, ...]
    home: str
    join: str
    synchronised: bool


@dataclass(frozen=True, eq=False)
class Placed:
    """What an emitted model remembers: its plan, and where its parts really are.

    `flow` lists the calls; each of `runners` runs some of them by `run(run)`, in order.
    By the id of a node, `key_of` is the key of its part, `replicas` its towers, and
    `first_weight` the plan's name of its first weight; `variables` are by that name.
    By a key, there are a part's name, its device and that one's canonical name.
    `graphs` are those of steps, with a reference to Keras' training function where they
    are of its step; `running` are the runs that are going on, `shared` what those of a
    step have in common, `warned` what was warned of.
    """

    plan: Plan
    flow: Flow
    key_of: Mapping[int, str]
    replicas: Mapping[int, Replicas]
    first_weight: Mapping[int, str]
    part_of: Mapping[str, str]
    device_of: Mapping[str, Device]
    target_of: Mapping[str, str]
    variables: Mapping[str, Any]
    runners: tuple[Any, ...] = ()
    pipeline: Pipeline = field(default_factory=Pipeline)
    graphs: Any = field(default_factory=weakref.WeakKeyDictionary)
    running: list[Any] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    shared: list[Shared] = field(default_factory=list)

    def target(self, node: Any) -> str:
        """The canonical device of a node's part; that of the join of towers."""
        return self.target_of[self.key_of[id(node)]]

    def keys(self, node: Any) -> tuple[str, ...]:
        """The keys of the parts that run a node: its own, or those of its towers."""
        towers = self.replicas.get(id(node))
        return (self.key_of[id(node)],) if towers is None else towers.keys


def placed_of(model: Any) -> Placed | None:
    """The placement of an emitted model; None for any other."""
    found = getattr(model, "__dict__", {}).get(ATTRIBUTE)
    return found if isinstance(found, Placed) else None


def homes_of(plan: Plan, sites: Iterable[Site]) -> dict[int, str]:
    """The device of each layer's weights, by its id: of the first part with it."""
    targets = {p.part: plan.cluster[p.device].target for p in plan.placements}
    found: dict[int, str] = {}
    for site in sites:
        home = targets.get(weights_part(site.part), targets[site.part])
        operation = site.node.operation
        for layer in (operation, *keras_api.sublayers(operation)):
            found.setdefault(id(layer), home)
    return found


def placement(plan: Plan, flow: Flow, sites: Sequence[Site]) -> Placed:
    """What a model with these calls remembers of its plan; its runners come later."""
    graph = plan.graph
    keys = {part.name: f"k{next(_numbers)}" for part in graph.parts}
    towers = {
        name: Replicas(
            tuple(keys[tower_part(name, i)] for i in range(one.count)),
            keys.get(weights_part(name), keys[name]),
            keys[name],
            one.batch_norm == "synchronised",
        )
        for name, one in graph.towers.items()
    }
    weights = {call.name: call.weights for call in fold(graph)}
    variables = weakref.WeakValueDictionary[str, Any]()  # `quantize` makes new ones
    for site in sites:
        variables |= dict(zip(weights[site.call], variables_of(site.node.operation)))
    part_of = {id(site.node): site.part for site in sites}
    device_of = {key: plan.cluster[plan.device_of[p]] for p, key in keys.items()}
    return Placed(
        plan=plan,
        flow=flow,
        key_of={node: keys[part] for node, part in part_of.items()},
        replicas={n: towers[part] for n, part in part_of.items() if part in towers},
        first_weight={id(s.node): weights[s.call][0] for s in sites if weights[s.call]},
        part_of={key: part for part, key in keys.items()},
        device_of=device_of,
        target_of={key: canonical(one.target) for key, one in device_of.items()},
        variables=variables,
    )
