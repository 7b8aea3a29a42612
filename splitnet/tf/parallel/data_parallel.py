"""Data parallelism of a whole Keras model: its calls as one branch of towers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras

from splitnet.core.checks import Positive
from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError, DeviceError
from splitnet.core.graph import Graph, Part
from splitnet.core.net import BATCH_NORMS, Towers, preferences
from splitnet.core.replication import split_layers
from splitnet.planner.planner import plan_graph
from splitnet.tf.emit import emit, unplace
from splitnet.tf.placement.placed import placed_of
from splitnet.tf.reading.read import graph_of
from splitnet.tf.reading.source import Blueprint, blueprint_of
from splitnet.tf.runtime.devices import local_cluster

__all__ = ["data_parallel", "towers_of"]


def data_parallel(
    model: Any,
    cluster: Cluster | None = None,
    *,
    devices: Sequence[str] | int | None = None,
    batch: Positive = 32,
    weights_on: str = "cpu",
    batch_norm: str = "per_tower",
    broadcast: Sequence[str] = (),
    **plan_options: Any,
) -> Any:
    """Copy a Keras model onto several devices, each with its share of every batch.

    The copy trains, saves and loads as the model itself: its weights exist once, and
    their gradient is that of the whole batch. `plan_of` returns its plan. The model
    that is given stays as it was.

    Args:
        model: a functional or Sequential `keras.Model` of any batch size. Of one that
            is placed already the plain model is taken: neither its devices nor its
            micro-batches go over.
        cluster: the machine; None means this one.
        devices: a device per tower; a number takes that many GPUs; None takes all.
        batch: samples per step that the plan counts with; any number may be fed.
        weights_on: where the weights live.
        batch_norm: "per_tower" or "synchronised"; see `Net.towers`.
        broadcast: names of inputs that every tower reads whole.
        **plan_options: as `plan`: `missing=`, `costs=`, `optimizer=` and so on.

    Raises:
        DeviceError: fewer than two devices, or one of them twice.
        DeclarationError: the model cannot be split by samples.
    """
    cluster = local_cluster() if cluster is None else cluster
    model = _whole(model)
    towers = Towers(
        tuple(preferences(one) for one in _devices(cluster, devices)),
        preferences(weights_on),
        batch_norm,
        tuple(broadcast),
    )
    graph = towers_of(model, towers, batch, join_on=cluster.home.name)
    return emit(model, plan_graph(graph, cluster, **plan_options))


def _whole(model: Any) -> Any:
    """The model, or its plain one where layers of it are cut over devices."""
    placed = placed_of(model) if isinstance(model, keras.Model) else None
    cut = placed is not None and split_layers(placed.plan.graph)
    return unplace(model) if cut else model


def towers_of(model: Any, towers: Towers, batch: int, *, join_on: str) -> Graph:
    """Read a Keras model as towers of itself; nothing is run.

    Raises:
        DeclarationError: the model cannot be split by samples.
    """
    if not isinstance(model, keras.Model):
        raise DeclarationError(
            "data_parallel takes a keras.Model; in a Net, use net.towers. Received: "
            f"{model!r} ({type(model).__name__})."
        )
    blueprint = blueprint_of(model)
    faults = _faults(blueprint, towers)
    if faults:
        raise DeclarationError(f"model {model.name!r}: {' '.join(faults)}")
    name = blueprint.name
    while any(site.node.is_input and site.call == name for site in blueprint.sites):
        name += "_towers"
    inputs = [site for site in blueprint.sites if site.node.is_input]
    calls = [
        replace(site, call=f"{name}/{site.call}", part=name)
        for site in blueprint.sites
        if not site.node.is_input
    ]
    parts = tuple(Part(site.part, "input", ("cpu",)) for site in inputs)
    return graph_of(
        replace(
            blueprint,
            parts=(*parts, Part(name, "towers", (join_on,))),
            sites=(*inputs, *calls),
            towers={name: towers},
        ),
        batch,
    )


def _faults(blueprint: Blueprint, towers: Towers) -> list[str]:
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
    return faults


def _devices(cluster: Cluster, asked: Sequence[str] | int | None) -> list[str]:
    """The devices of the towers.

    Raises:
        DeviceError: fewer than two, more than there are, or one of them twice.
    """
    gpus = [device.name for device in cluster if device.kind == "gpu"]
    if isinstance(asked, str):
        asked = [asked]
    if asked is None:
        asked = gpus
    found = gpus[: max(asked, 0)] if isinstance(asked, int) else list(asked)
    if isinstance(asked, int) and asked > len(gpus):
        raise DeviceError(
            f"data_parallel over {asked} GPUs: there are {len(gpus)} here "
            f"({', '.join(gpus) or 'none'}). Name devices=[...], or ask for fewer."
        )
    if len(found) < 2:
        raise DeviceError(
            f"data_parallel needs two or more devices, and has {len(found)} "
            f"({', '.join(found) or 'none'}); the cluster has "
            f"{', '.join(device.name for device in cluster)}. Name devices=[...], or "
            "train the model itself."
        )
    pins = [name for one in found for name in preferences(one) if ":" in name]
    for pin in dict.fromkeys(pins):
        if pins.count(pin) > 1:
            raise DeviceError(
                f"data_parallel: devices= names {pin!r} {pins.count(pin)} times. "
                "Several towers on one device gain nothing; give each one of its own."
            )
    return found
