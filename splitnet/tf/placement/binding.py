"""Plans bound to models: which node is which call of the plan, and where it belongs."""

from typing import Any

from splitnet.core.plan import Fallback, Plan
from splitnet.core.replication import fold, tower_part, towers_in
from splitnet.tf.placement.device_function import canonical
from splitnet.tf.placement.placed import Placed
from splitnet.tf.reading.flatten import Flow
from splitnet.tf.reading.match import planned_blueprint, planned_sites
from splitnet.tf.reading.source import Site
from splitnet.tf.reading.variables import variables_of

__all__ = ["bare_placement", "placement"]


def placement(
    plan: Plan,
    flow: Flow,
    sites: list[Site],
    nodes: dict[int, Any],
    targets: dict[str, str],
    fallbacks: list[Fallback],
) -> Placed:
    """What a model that was copied by a plan remembers of it, without its runners."""
    keys = {part.name: f"k{i}" for i, part in enumerate(plan.graph.parts)}
    towers = {
        name: tuple(keys[tower_part(name, i)] for i in range(one.count))
        for name, one in towers_in(plan.graph).items()
    }
    clones = [(site, nodes[id(site.node)]) for site in sites]
    owned = [variables_of(clone.operation) for _, clone in clones]
    return Placed(
        plan=plan,
        flow=flow,
        key_of={id(clone): keys[site.part] for site, clone in clones},
        keys_of={id(t): towers[s.part] for s, t in clones if s.part in towers},
        target_of={key: canonical(targets[part]) for part, key in keys.items()},
        part_of={key: part for part, key in keys.items()},
        weight_of=_weight_names(plan, sites, owned),
        fallbacks=tuple(fallbacks),
    )


def bare_placement(model: Any, plan: Plan) -> Placed:
    """The marks of a plan for a model that is not placed: parts, and no devices.

    Raises:
        DeclarationError: the plan was made from another model.
    """
    blueprint = planned_blueprint(model, plan)
    sites = planned_sites(blueprint, plan)
    keys = {part.name: f"k{i}" for i, part in enumerate(plan.graph.parts)}
    owned = [variables_of(site.node.operation) for site in sites]
    return Placed(
        plan=plan,
        flow=blueprint.flow,
        key_of={id(site.node): keys[site.part] for site in sites},
        keys_of={},
        target_of={},
        part_of={key: part for part, key in keys.items()},
        weight_of=_weight_names(plan, sites, owned),
    )


def _weight_names(
    plan: Plan, sites: list[Site], owned: list[list[Any]]
) -> dict[int, str]:
    """The plan's name of each variable, by the id of the model's own variable."""
    names: dict[int, str] = {}
    weights = {
        call.name: call.weights
        for bare in (True, False)
        for call in fold(plan.graph, bare=bare)
    }
    for site, variables in zip(sites, owned):
        names.update(zip(map(id, variables), weights[site.call]))
    return names
