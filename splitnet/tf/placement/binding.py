"""Plans bound to models: which node is which call of the plan, and where it belongs."""

from collections.abc import Sequence

from splitnet.core.plan import Plan
from splitnet.core.replication import fold, tower_part, towers_in
from splitnet.tf.placement.device_function import canonical
from splitnet.tf.placement.placed import Placed
from splitnet.tf.reading.flatten import Flow
from splitnet.tf.reading.source import Site
from splitnet.tf.reading.variables import variables_of

__all__ = ["placement"]


def placement(plan: Plan, flow: Flow, sites: Sequence[Site]) -> Placed:
    """What a model remembers of its plan; its runners come later.

    Args:
        plan: what the model was made by, or is held against.
        flow: what the model runs.
        sites: the model's calls under the names and parts of the plan.
    """
    keys = {part.name: f"k{i}" for i, part in enumerate(plan.graph.parts)}
    towers = {
        name: tuple(keys[tower_part(name, i)] for i in range(one.count))
        for name, one in towers_in(plan.graph).items()
    }
    nodes = {id(site.node): site.part for site in sites}
    return Placed(
        plan=plan,
        flow=flow,
        key_of={node: keys[part] for node, part in nodes.items()},
        keys_of={node: towers[part] for node, part in nodes.items() if part in towers},
        target_of={
            key: canonical(plan.cluster[plan.device_of[part]].target)
            for part, key in keys.items()
        },
        part_of={key: part for part, key in keys.items()},
        weight_of=_weight_names(plan, sites),
    )


def _weight_names(plan: Plan, sites: Sequence[Site]) -> dict[int, str]:
    """The plan's name of each variable, by the id of the model's own variable."""
    names: dict[int, str] = {}
    weights = {
        call.name: call.weights
        for bare in (True, False)
        for call in fold(plan.graph, bare=bare)
    }
    for site in sites:
        variables = variables_of(site.node.operation)
        names.update(zip(map(id, variables), weights[site.call]))
    return names
