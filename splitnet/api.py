"""Public verbs that need several packages: plan, place, score."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from splitnet.core.checks import Positive
from splitnet.core.cluster import Cluster
from splitnet.core.costs import load_costs
from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Graph
from splitnet.core.net import Net
from splitnet.core.plan import Plan, PlanOptions, ScoreOptions, StrategyComparison
from splitnet.planner import analysis, evaluate, what_if
from splitnet.planner.plan_file import load_plan
from splitnet.planner.problem import in_calls
from splitnet.planner.strategies import auto
from splitnet.planner.strategies.candidates import compare_plan
from splitnet.planner.strategies.space import Limits
from splitnet.view.render import notebook_progress

if TYPE_CHECKING:
    import keras


def plan(
    source: "Net | keras.Model | Graph",
    cluster: Cluster | None = None,
    **options: Annotated[Any, PlanOptions],
) -> Plan:
    """Choose a device for every part of a model; builds nothing and runs nothing.

    Args:
        source: a `Net`, a Keras model, a function without arguments that builds one,
            whose weights need no memory then, or a `Graph`.
        cluster: the machine to plan for; None means this one, `local_cluster()`.
        **options: as follows.

    Keyword Args:
        batch: samples per step; None means 32, and of a `Graph` its own.
        objective: "latency" (seconds of one step), "throughput" (seconds of the
            busiest device of a pipeline) or "memory" (bytes of the fullest device).
        pins: name patterns -> `on=`, a function of a part, or another plan or its file;
            they override the declaration. "as_built": each layer of a Keras model goes
            where its variables are, for models that were built under `tf.device`.
        missing: if a requested device does not exist, "fallback" (use the next best and
            record it) or "error".
        costs: a cost model, or the file of a measured one; None estimates.
        optimizer: it, or its name, such as "sgd" or "adam+ema"; its slots take memory.
        time_limit: seconds to search at most, 5.
        effort: steps to search, of about a microsecond each; None means those of the
            time limit. Equal seeds and efforts give equal plans, unless the time limit
            ends the search first; then `plan.ended_by_clock` says so.
        training: whether backward passes and updates belong to the step, True.
        contiguity: "free", "convex" (no path of data leaves a device and returns) or
            "pipeline". None: "convex" for the throughput of a Keras model, if it fits.
        seed: of the random moves of the search, 0.
        cut_penalty: share of the objective traded for fewer device crossings, 0.02.
        regroup: whether calls of a `Graph` are placed one by one, but for those of a
            declared branch, and the parts of the plan are those that then run together;
            always so for a Keras model, never for a net.
        nested: models inside a Keras model: "expand" or "keep"; see `read`.
        on_progress: called with the share of the search done and the best value so far.
        strategy: "auto" chooses how to use the devices as well: one of them, branches,
            stages with micro-batches, recomputation, towers of the whole model, of a
            part or of stages, slices of layers that no GPU has room for; the simplest
            that is at most 2 % slower than the fastest, in up to twice the time limit
            or 20 s more, once one fits. What follows fixes some of that, None nothing.
        microbatches: how many micro-batches a batch is cut into.
        schedule: "gpipe" or "1f1b".
        recompute: True on every device, False on none; None where memory is short.
        towers: how many copies of the model or of a part, each on a device or over
            several; 1 for none.
        split: how many slices of which layers, such as `{"wide": 2}`, each on a device
            of its own; `{}` for none.

    Raises:
        DeclarationError: the source cannot be read, or options are wrong.
        DeviceError: an impossible pin, or a device that is missing under "error".
        InfeasibleError: nothing fits; with what would make it fit.
    """
    on_progress = options.pop("on_progress", None) or notebook_progress()
    how = PlanOptions(**options, on_progress=on_progress)
    source, graph, cluster, how = _read(source, cluster, how)
    if how.strategy is None:
        return auto.plan_placement(graph, cluster, how, lambda: _limits(source, how))
    return auto.plan_strategy(graph, cluster, how, _limits(source, how))


def compare_strategies(
    source: "Plan | Net | keras.Model | Graph",
    cluster: Cluster | None = None,
    **options: Annotated[Any, PlanOptions],
) -> StrategyComparison:
    """Compare one device, branches, towers and pipelines: a row for each.

    A `Plan` is given without other arguments; nothing is searched again. For another
    source, with arguments as in `plan`, strategies are searched as by strategy="auto".
    """
    if isinstance(source, Plan):
        if cluster is not None or options:
            fault = "compare_strategies(plan) takes nothing else."
            raise DeclarationError(f"{fault} Give its source to compare with others.")
        return source.verdict.strategies or compare_plan(source)
    chosen = PlanOptions(**{"strategy": "auto", **options})
    source, graph, cluster, chosen = _read(source, cluster, chosen)
    return auto.strategies_of(graph, cluster, chosen, _limits(source, chosen))


def _read(
    source: Any, cluster: Cluster | None, options: PlanOptions
) -> tuple[Any, Graph, Cluster, PlanOptions]:
    """The source, of a function its model, its graph, the machine, and the options."""
    if cluster is None:
        from splitnet.tf.runtime.devices import local_cluster

        cluster = local_cluster()
    given = graph = source
    pins = options.pins
    if not isinstance(source, Graph):
        from splitnet.tf.reading.read import read
        from splitnet.tf.reading.source import resolved

        source = source if isinstance(source, Net) else resolved(source)
        how = {"nested": options.nested, "training": options.training}
        graph = read(source, options.batch or 32, **how)
    for name in ("batch", "training"):
        asked, own = getattr(options, name), getattr(graph, name)
        if None not in (asked, own) and asked != own:
            fault = f"{name}={asked} was asked for; the graph has {name}={own}"
            raise DeclarationError(f"{fault}. Ask for that, or give a model.")
    if pins == "as_built":
        from splitnet.tf.placement.targets import pins_as_built

        pins = pins_as_built(given, graph, cluster, options.nested)
    elif isinstance(pins, str | PathLike):
        pins = load_plan(Path(pins))
    anew = options.regroup if isinstance(source, Graph) else not isinstance(source, Net)
    known = replace(options, costs=load_costs(options.costs), pins=pins, regroup=anew)
    known = replace(known, batch=graph.batch)
    return source, in_calls(graph) if anew else graph, cluster, known


def _limits(source: Any, options: PlanOptions) -> Any:
    if isinstance(source, Graph):
        return Limits()
    from splitnet.tf.parallel.pipeline import obstacles_of
    from splitnet.tf.parallel.splitting import obstacle_of, with_slices
    from splitnet.tf.reading.read import graph_of
    from splitnet.tf.reading.source import blueprint_of

    blueprint = cache(lambda: blueprint_of(source, options.nested))
    return Limits(
        obstacles_of(source, options.nested),
        lambda name, count: obstacle_of(blueprint(), name, count),
        lambda slices: graph_of(
            with_slices(blueprint(), slices), options.batch, training=options.training
        ),
    )


def place(
    source: "Net | keras.Model",
    cluster: Cluster | None = None,
    **options: Annotated[Any, PlanOptions],
) -> "keras.Model":
    """Read, plan and emit, as by `plan`; `plan_of(model)` returns the plan."""
    from splitnet.tf.emit import emit

    return emit(source, plan(source, cluster, **options))


def score(
    source: "Net | keras.Model | Graph",
    cluster: Cluster,
    device_of: Mapping[str, str] | Plan,
    **options: Annotated[Any, ScoreOptions],
) -> Plan:
    """Evaluate a given placement: the figures of a plan, without a search.

    `device_of` maps names of parts, calls or layers, ranges of calls such as "a .. b",
    or patterns to devices, for every part. Or it is a plan. Options are as in `plan`.
    """
    _, graph, cluster, known = _read(source, cluster, PlanOptions(**options))
    return analysis.with_verdict(evaluate.score(graph, cluster, device_of, known))


def largest_batch(
    source: "Net | keras.Model | Graph",
    cluster: Cluster | None = None,
    *,
    device_of: Mapping[str, str] | Plan | None = None,
    pins: Any = None,
    optimizer: Any = "adam",
    training: bool = True,
    most: Positive = 1 << 20,
    nested: str = "expand",
) -> int:
    """The largest batch that fits the memories; 0 if not even one sample does.

    Of a model with a fixed batch size it is that one, or 0. `device_of` keeps a
    placement, as in `score`, and of a plan how it runs; otherwise each batch is placed
    anew in two seconds. More may fit in micro-batches, or where placing takes longer.
    None above `most` is tried. Bytes of a `Graph` grow with it. Others: as in `plan`.
    """
    known = {"pins": pins, "optimizer": optimizer, "training": training}
    options, fixed = PlanOptions(**known, nested=nested), []
    if not isinstance(source, Graph):
        from splitnet.tf.reading.read import fixed_batches
        from splitnet.tf.reading.source import resolved

        fixed = fixed_batches(source := resolved(source))
    if fixed:
        options, most = replace(options, batch=fixed[0]), fixed[0]
    _, graph, cluster, options = _read(source, cluster, options)
    found = what_if.largest_batch(graph, cluster, device_of, options, most)
    return 0 if fixed and found < most else found
