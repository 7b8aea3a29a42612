"""Data parallelism of a whole Keras model: its calls as one branch of towers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras

from splitnet.core.checks import Positive
from splitnet.core.cluster import Cluster
from splitnet.core.costs import costs_of
from splitnet.core.errors import DeclarationError, DeviceError
from splitnet.core.graph import BATCH_NORMS, Graph, Part, Towers
from splitnet.core.net import preferences
from splitnet.core.plan import PlanOptions
from splitnet.core.replication import split_layers
from splitnet.planner.evaluate import executed
from splitnet.planner.planner import plan_graph
from splitnet.planner.strategies.space import groups_of, workers_of
from splitnet.tf.emit import emit, unplace
from splitnet.tf.placement.placed import Placed, placed_of
from splitnet.tf.reading.flatten import Blueprint
from splitnet.tf.reading.read import graph_of
from splitnet.tf.reading.source import blueprint_of
from splitnet.tf.runtime.devices import local_cluster


def data_parallel(
    model: Any,
    cluster: Cluster | None = None,
    *,
    devices: Sequence[str] | int | None = None,
    batch: Positive = 32,
    weights_on: str = "cpu",
    batch_norm: str = "per_tower",
    broadcast: Sequence[str] = (),
    missing: str = "fallback",
    costs: Any = None,
    optimizer: Any = "adam",
) -> Any:
    """Copy a Keras model onto several devices, each with its share of every batch.

    The copy trains, saves and loads as the model itself: its weights exist once, and
    their gradient is that of the whole batch. `plan_of` returns its plan. The model
    that is given stays as it was.

    Args:
        model: a functional or Sequential `keras.Model` of any batch size. One that is
            placed over several devices keeps its placement and its micro-batches: each
            tower is placed alike over as many devices, of one host if it has them.
            Towers and split layers become plain layers first.
        cluster: the machine; None means this one.
        devices: those of the towers, one after another; a number takes that many GPUs;
            None takes all.
        batch: samples per step that the plan counts with; any number may be fed.
        weights_on: where the weights live.
        batch_norm: "per_tower" or "synchronised"; see `Net.towers`.
        broadcast: names of inputs that every tower reads whole.
        missing: as in `plan`.
        costs: as in `plan`.
        optimizer: as in `plan`.

    Raises:
        DeviceError: fewer than two devices, or one of them twice.
        DeclarationError: the model cannot be split by samples.
    """
    if not isinstance(model, keras.Model):
        raise DeclarationError(
            "data_parallel takes a keras.Model; in a Net, use net.towers. Received: "
            f"{model!r} ({type(model).__name__})."
        )
    cluster = local_cluster() if cluster is None else cluster
    placed = placed_of(model)
    if placed is not None and split_layers(placed.plan.graph):
        model, placed = unplace(model), None
    used = _spread(placed)
    towers = Towers((), preferences(weights_on), batch_norm, tuple(broadcast))
    graph = towers_of(model, placed if used else None, cluster, devices, towers, batch)
    options = PlanOptions(missing=missing, costs=costs_of(costs), optimizer=optimizer)
    plan = plan_graph(graph, cluster, options)
    if placed is not None and used:
        plan = executed(plan, replace(placed.plan.execution, recompute=()))
    return emit(model, plan)


def towers_of(
    model: Any,
    placed: Placed | None,
    cluster: Cluster,
    devices: Sequence[str] | int | None,
    towers: Towers,
    batch: int,
) -> Graph:
    """Read a Keras model as towers of itself; nothing is run.

    Each part of a placed one becomes towers, unless all of them would be on one device.
    """
    names = _devices(cluster, devices)
    blueprint = blueprint_of(model, placed.flow.nested if placed else "keep")
    _check(blueprint, towers)
    inputs = [site.part for site in blueprint.sites if site.node.is_input]
    nodes = blueprint.flow.nodes
    if placed is None:
        part_of = {id(node): blueprint.name for node in nodes}
        homes = {blueprint.name: names}
    else:
        part_of, homes = {}, {}
        maps = _device_maps(placed, cluster, names)
        for mine, its in zip(nodes, placed.flow.nodes, strict=True):
            key = placed.key_of[id(its)]
            part_of[id(mine)] = part = placed.part_of[key]
            homes[part] = [mapped(placed.device_of[key]) for mapped in maps]
    parts, each = [Part(name, "input", ("cpu",)) for name in inputs], {}
    for name, where in homes.items():
        if placed is None or len(set(where)) > 1:
            each[name] = replace(towers, on=tuple(map(preferences, where)))
            parts.append(Part(name, "towers", (cluster.home.name,)))
        else:
            parts.append(Part(name, on=preferences(where[0])))
    sites = []
    for site in blueprint.sites:
        part = part_of.get(id(site.node), site.part)
        call = f"{part}/{site.call}" if part in each else site.call
        sites.append(replace(site, part=part, call=call))
    made = replace(blueprint, parts=tuple(parts), sites=tuple(sites), towers=each)
    return graph_of(made, batch)


def _spread(placed: Placed | None) -> list[str]:
    """The devices over which a placed model computes; none if one, or of towers."""
    if placed is None or placed.replicas:
        return []
    busy = {placed.device_of[key] for key in placed.computing}
    found = [name for name in workers_of(placed.plan.cluster) if name in busy]
    return found if len(found) > 1 else []


def _devices(cluster: Cluster, asked: Sequence[str] | int | None) -> list[str]:
    """The devices of the towers: two or more, each once."""
    gpus = [device.name for device in cluster if device.kind == "gpu"]
    if isinstance(asked, str):
        asked = [asked]
    if isinstance(asked, int) and asked > len(gpus):
        raise DeviceError(
            f"data_parallel over {asked} GPUs: there are {len(gpus)} here "
            f"({', '.join(gpus) or 'none'}). Name devices=[...], or ask for fewer."
        )
    if asked is None or isinstance(asked, int):
        found = gpus[: len(gpus) if asked is None else max(asked, 0)]
    else:
        found = list(asked)
    if len(found) < 2:
        raise DeviceError(
            f"data_parallel needs two or more devices, and has {len(found)} "
            f"({', '.join(found) or 'none'}); the cluster has "
            f"{', '.join(device.name for device in cluster)}. Name devices=[...], or "
            "train the model itself."
        )
    pins = [name for one in found for name in preferences(one) if ":" in name]
    for pin in pins:
        if pins.count(pin) > 1:
            raise DeviceError(
                f"data_parallel: devices= names {pin!r} {pins.count(pin)} times. "
                "Several towers on one device gain nothing; give each one of its own."
            )
    return found


def _device_maps(
    placed: Placed, cluster: Cluster, names: Sequence[str]
) -> list[Callable[[str], str]]:
    """For each tower of a placed model, what each device of its plan becomes.

    A CPU becomes that of the tower's host.
    """
    used = _spread(placed)
    size = len(used)
    groups = groups_of(names, size)
    if len(groups) < 2:
        raise DeviceError(
            f"the model is placed over {size} devices ({', '.join(used)}), so two "
            f"towers of it need {2 * size}. Received: {', '.join(names)}. Give "
            "data_parallel(sn.unplace(model)) to copy the whole model to each device."
        )

    def map_of(group: Sequence[str]) -> Callable[[str], str]:
        pairs, hosts = dict(zip(used, group)), {n.rpartition("/")[0] for n in group}

        def mapped(name: str) -> str:
            if name in pairs:
                return pairs[name]
            kind = placed.plan.cluster[name].kind
            near = [d.name for d in cluster.of_kind(kind) if {d.host} == hosts]
            return near[0] if near else cluster.home.name

        return mapped

    return list(map(map_of, groups))


def _check(blueprint: Blueprint, towers: Towers) -> None:
    """Refuse what cannot be split by samples, with every fault."""
    names = [site.call for site in blueprint.sites if site.node.is_input]
    faults = [
        f"broadcast= names {one!r}, which is not an input ({', '.join(names)})."
        for one in towers.broadcast
        if one not in names
    ]
    fixed = [
        tensor.name
        for tensor in blueprint.model.inputs
        if tensor.shape[0] is not None and tensor.name not in towers.broadcast
    ]
    if fixed:
        faults.append(
            f"input {', '.join(fixed)} has a fixed batch size, which cannot be split; "
            "build it with keras.Input(shape), without batch_shape= or batch_size=."
        )
    if towers.batch_norm not in BATCH_NORMS:
        faults.append(
            f"batch_norm= must be one of {', '.join(map(repr, BATCH_NORMS))}. "
            f"Received: {towers.batch_norm!r}."
        )
    if faults:
        raise DeclarationError(f"model {blueprint.name!r}: {' '.join(faults)}")
