"""Data parallelism of a whole Keras model: its calls as one branch of towers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import keras

from splitnet.core.checks import Positive
from splitnet.core.cluster import Cluster, Device
from splitnet.core.costs import load_costs
from splitnet.core.errors import DeclarationError, DeviceError
from splitnet.core.graph import BATCH_NORMS, Graph, Part, Towers
from splitnet.core.net import preferences
from splitnet.core.plan import PlanOptions
from splitnet.core.replication import in_pieces
from splitnet.planner.evaluate import executed
from splitnet.planner.strategies.auto import plan_placement
from splitnet.planner.strategies.space import groups_of, workers_of
from splitnet.tf.emit import emit, unplace
from splitnet.tf.parallel.splitting import joined_layers
from splitnet.tf.placement.placed import Placed, placed_of
from splitnet.tf.reading.read import fixed_batches, graph_of
from splitnet.tf.reading.source import blueprint_of
from splitnet.tf.runtime.devices import local_cluster


def data_parallel(
    model: keras.Model,
    cluster: Cluster | None = None,
    *,
    devices: Sequence[str] | int | None = None,
    batch: Positive = 32,
    weights_on: str = "cpu",
    batch_norm: Annotated[str, BATCH_NORMS] = "per_tower",
    missing: str = "fallback",
    costs: Any = None,
    optimizer: Any = "adam",
) -> Any:
    """Copy a Keras model onto several devices, each with its share of every batch.

    The copy trains, saves and loads as the model itself: its weights exist once, and
    their gradient is that of the whole batch. `plan_of` returns its plan. The model
    that is given stays as it was. Layers without a GPU kernel run once, on the CPU.

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
        missing: as in `plan`.
        costs: as in `plan`.
        optimizer: as in `plan`.

    Raises:
        DeviceError: fewer than two devices, or one of them twice.
        DeclarationError: the model cannot be split by samples.
    """
    if sizes := fixed_batches(model):
        fault = f"model {model.name!r} takes batches of {sizes[0]} alone. Build it"
        raise DeclarationError(f"towers share a batch, and {fault} without that size.")
    cluster = local_cluster() if cluster is None else cluster
    placed = placed_of(model)
    if placed is not None and joined_layers(model):
        model, placed = unplace(model), None
    if placed is not None and len(_used(placed)) < 2:
        placed = None
    towers = Towers((), preferences(weights_on), batch_norm)
    graph = towers_of(model, placed, cluster, devices, towers, batch)
    options = PlanOptions(missing=missing, costs=load_costs(costs), optimizer=optimizer)
    plan = plan_placement(graph, cluster, options, lambda: None)
    if placed is not None:
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
    """A Keras model as towers; a placed one's parts that all towers share run once."""
    names = _devices(cluster, devices)
    blueprint = blueprint_of(model, placed.flow.nested if placed else "expand")
    inputs = [site.part for site in blueprint.sites if site.node.is_input]
    if placed is None:
        graph = graph_of(blueprint, batch)
        kept = {call.part for call in graph.calls if call.cpu_only}
        pieces, copied = in_pieces(graph, kept)
        part_of = {id(s.node): pieces.call[s.call].part for s in blueprint.sites}
        # Of each part, the device in each tower, or the one where it runs once.
        homes = dict.fromkeys(copied, names) | dict.fromkeys(kept, ["cpu"])
    else:
        used, part_of, homes = _used(placed), {}, {}
        groups = groups_of(names, len(used))
        if len(groups) < 2:
            has = f"the model is placed over {len(used)} devices ({', '.join(used)})"
            needs = f"two towers of it need {2 * len(used)}"
            how = "To copy the whole model to each, data_parallel(sn.unplace(model))"
            received = f"Received: {', '.join(names)}"
            raise DeviceError(f"{has}, so {needs}. {received}. {how}.")
        for node, its in zip(blueprint.flow.nodes, placed.flow.nodes, strict=True):
            key = placed.key_of[id(its)]
            part_of[id(node)] = part = placed.part_of[key]
            here = placed.device_of[key]
            homes[part] = [_near(cluster, here, dict(zip(used, g))) for g in groups]
    parts, each = [Part(name, "input", ("cpu",)) for name in inputs], {}
    for name, where in homes.items():
        if len(where) > 1 and (placed is None or len({*where}) > 1):
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


def _used(placed: Placed) -> list[str]:
    """The devices over which a placed model computes; none if that has towers."""
    plan = placed.plan
    calls = (c for c in plan.graph.calls if c.forward_flops or c.weights)
    busy = {plan.device_of[call.part] for call in calls}
    workers = () if placed.replicas else workers_of(plan.cluster)
    return [name for name in workers if name in busy]


def _near(cluster: Cluster, device: Device, instead: Mapping[str, str]) -> str:
    """The device `instead` in a tower, or one of its kind on that host, as a CPU."""
    hosts = {name.rpartition("/")[0] for name in instead.values()}
    near = (d.name for d in cluster.of_kind(device.kind) if {d.host} == hosts)
    return instead.get(device.name) or next(near, cluster.home.name)


def _devices(cluster: Cluster, asked: Sequence[str] | int | None) -> list[str]:
    gpus = [device.name for device in cluster if device.kind == "gpu"]
    wanted = len(gpus) if asked is None else asked
    found = gpus[: max(wanted, 0)] if isinstance(wanted, int) else list(wanted)
    pins = [name for one in found for name in preferences(one) if ":" in name]
    too_few = len(found) < 2 or isinstance(asked, int) and asked > len(found)
    if too_few or len({*pins}) < len(pins):
        wants = "data_parallel needs two or more devices, all here, each once; has"
        given = f"{len(found)} ({', '.join(found) or 'none'}) by devices={asked!r}"
        names = ", ".join(cluster.names)
        here = f"there are {len(gpus)} GPUs here, and the cluster has {names}"
        advice = "Name devices=[...], or train the model itself"
        raise DeviceError(f"{wants} {given}; {here}. {advice}.")
    return found
