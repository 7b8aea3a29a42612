"""A placed model, lowered once: what runs each of its calls, and where."""

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from splitnet.core.plan import Plan
from splitnet.core.replication import (
    broadcast_inputs,
    fold,
    tower_part,
    weights_part,
)
from splitnet.simulator.microbatch import Pipeline
from splitnet.tf.internals import keras_api
from splitnet.tf.placement.device_function import canonical
from splitnet.tf.placement.run import Shared
from splitnet.tf.reading.flatten import Flow, Site
from splitnet.tf.reading.variables import variables_of

ATTRIBUTE = "_splitnet"
_numbers = itertools.count()  # one step may run several placed models


@dataclass(frozen=True, slots=True)
class Replicas:
    """The keys of one branch's towers, of its weights' home and of its join."""

    keys: tuple[str, ...]
    home: str
    join: str
    synchronised: bool
    broadcast: frozenset[str]

    def feeds(self, others: "Replicas") -> bool:
        """Whether tower i of these hands its own samples to tower i of the others."""
        same = len(self.keys) == len(others.keys)
        return self.join == others.join or same and self.join not in others.broadcast


@dataclass(frozen=True, eq=False)
class Placed:
    """What an emitted model remembers: its plan, and where its parts really are.

    `flow` lists the calls; each of `runners` runs some of them by `run(run)`, in order.
    By the id of a node, `key_of` is the key of its part, `replicas` the towers that run
    it, if some do, and `first_weight` the plan's name of its first weight. By a key,
    `part_of` is the part's name, `device_of` that of its device, and `target_of` the
    device's canonical name; parts of `computing` have FLOPs. `weight_of` is the plan's
    name of a variable, by its id. `whole` names the inputs that all towers read whole.
    `graphs` has weak references to the step graphs made last, `running` the runs that
    are going on, `shared` what those of a step have in common, `warned` what was warned
    of.
    """

    plan: Plan
    flow: Flow
    key_of: Mapping[int, str]
    replicas: Mapping[int, Replicas]
    first_weight: Mapping[int, str]
    part_of: Mapping[str, str]
    device_of: Mapping[str, str]
    target_of: Mapping[str, str]
    computing: Set[str]
    weight_of: Mapping[int, str]
    whole: Set[str]
    runners: tuple[Any, ...] = ()
    pipeline: Pipeline = field(default_factory=Pipeline)
    graphs: list[weakref.ref[Any]] = field(default_factory=list)
    running: list[Any] = field(default_factory=list)
    warned: set[str] = field(default_factory=set)
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
    """The device of each layer's weights, by its id: of the first part that calls it.

    That of towers has a part of its own, if the body has weights.
    """
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
            frozenset(keys[source] for source in one.broadcast if source in keys),
        )
        for name, one in graph.towers.items()
    }
    weights = {call.name: call.weights for call in fold(graph)}
    # An id goes with its variable, as another one may get it: `quantize` makes new.
    names: dict[int, str] = {}
    for site in sites:
        variables = variables_of(site.node.operation)
        for variable, name in zip(variables, weights[site.call]):
            if id(variable) not in names:
                weakref.finalize(variable, names.pop, id(variable), None).atexit = False
            names[id(variable)] = name
    part_of = {id(site.node): site.part for site in sites}
    device_of = {key: plan.device_of[part] for part, key in keys.items()}
    return Placed(
        plan=plan,
        flow=flow,
        key_of={node: keys[part] for node, part in part_of.items()},
        replicas={n: towers[part] for n, part in part_of.items() if part in towers},
        first_weight={
            id(site.node): weights[site.call][0] for site in sites if weights[site.call]
        },
        part_of={key: part for part, key in keys.items()},
        device_of=device_of,
        target_of={
            key: canonical(plan.cluster[device].target)
            for key, device in device_of.items()
        },
        computing={keys[call.part] for call in graph.calls if call.forward_flops},
        weight_of=names,
        whole=broadcast_inputs(graph),
    )
