"""Plans bound to models: which node is which call of the plan, and where it belongs."""

from typing import Any

from splitnet.core.plan import Fallback, Plan
from splitnet.core.replication import fold
from splitnet.tf.placement import Placed
from splitnet.tf.reading.flatten import Flow
from splitnet.tf.reading.match import planned_blueprint, planned_sites
from splitnet.tf.reading.source import Site
from splitnet.tf.reading.variables import variables_of
from splitnet.tf.replicas import Replicas, replicas_of

__all__ = ["bare_placement", "placement"]


def placement(
    plan: Plan,
    flow: Flow,
    sites: list[Site],
    nodes: dict[int, Any],
    targets: dict[str, str],
    receipts: list[Fallback],
) -> Placed:
    """What a model that was copied by a plan remembers of it."""
    keys = {part.name: f"k{i}" for i, part in enumerate(plan.graph.parts)}
    twins = [(nodes[id(site.node)], keys[site.part]) for site in sites]
    owned = [variables_of(nodes[id(site.node)].operation) for site in sites]
    target_of = {key: targets[part] for part, key in keys.items()}
    replicas = replicas_of(plan, keys)
    return Placed(
        plan=plan,
        flow=flow,
        key_of={id(node): key for node, key in twins},
        target_of=target_of,
        part_of={key: part for part, key in keys.items()},
        home_of=_homes(_users(sites, owned, keys, replicas), target_of),
        weight_of=_weight_names(plan, sites, owned),
        receipts=tuple(receipts),
        replicas={
            id(nodes[id(site.node)]): replicas[site.part]
            for site in sites
            if site.part in replicas
        },
    )


def _users(
    sites: list[Site],
    owned: list[list[Any]],
    keys: dict[str, str],
    replicas: dict[str, Replicas],
) -> list[tuple[list[Any], str]]:
    """Each call's variables with the keys it uses them under, towers' home first."""
    return [
        (variables, key)
        for site, variables in zip(sites, owned)
        for key in (
            (replicas[site.part].home, *replicas[site.part].keys)
            if site.part in replicas
            else (keys[site.part],)
        )
    ]


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
        target_of={},
        part_of={key: part for part, key in keys.items()},
        home_of={},
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


def _homes(
    users: list[tuple[list[Any], str]], target_of: dict[str, str]
) -> dict[int, str]:
    """The home of each variable used on several devices: the first of them."""
    keys_of: dict[int, list[str]] = {}
    for variables, key in users:
        for variable in variables:
            keys_of.setdefault(id(variable), []).append(key)
    return {
        number: keys[0]
        for number, keys in keys_of.items()
        if len({target_of[key] for key in keys}) > 1
    }
