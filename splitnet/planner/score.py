"""From a placement to a plan: simulate it, value it, and prove what can be proven."""

from collections.abc import Mapping
from dataclasses import replace

from splitnet.core.cluster import Cluster, device_name, is_kind
from splitnet.core.cost import CostModel, Roofline, optimizer_name
from splitnet.core.errors import DeclarationError, DeviceError, SplitnetError
from splitnet.core.graph import Graph
from splitnet.core.plan import Placement, Plan
from splitnet.planner.bounds import lower_bound
from splitnet.planner.portfolio import proven_bound
from splitnet.planner.request import OBJECTIVES, Request, check_choice
from splitnet.planner.steady import STEADY
from splitnet.planner.wishes import Group
from splitnet.simulator.old_simulate import outcome_of

__all__ = ["assemble", "bound_of", "score", "wishes_of"]


def assemble(request: Request, placements: tuple[Placement, ...]) -> Plan:
    """Simulate a placement of every part; the plan has no bound and no receipts yet.

    Raises:
        PlanFileError: a part without a device of the cluster.
    """
    device_of = {p.part: p.device for p in placements}
    outcome = outcome_of(request.graph, request.cluster, request.step, device_of)
    value = outcome.timeline.seconds
    if request.objective == "memory":
        value = float(max(m.total for m in outcome.memory.values()))
    elif request.objective in STEADY:
        free = _free_groups(request)
        places = [device_of[call.part] for call in request.graph.calls]
        value = request.steady(free).value(places)
    return Plan(
        graph=request.graph,
        cluster=request.cluster,
        placements=placements,
        fallbacks=(),
        transfers=outcome.transfers,
        memory=outcome.memory,
        timeline=outcome.timeline,
        home=outcome.home,
        objective=request.objective,
        optimizer=request.optimizer,
        training=request.training,
        value=value,
        costs=request.costs,
    )


def _free_groups(request: Request) -> list[Group]:
    """Every part by itself, anywhere."""
    everywhere = tuple(device.name for device in request.cluster)
    return [Group((part.name,), everywhere) for part in request.graph.parts]


def score(
    graph: Graph,
    cluster: Cluster,
    device_of: Mapping[str, str],
    *,
    objective: str = "latency",
    costs: CostModel | None = None,
    optimizer: object = "adam",
    training: bool = True,
) -> Plan:
    """Score a person's placement; nothing is improved, or refused for what it costs.

    Args:
        graph: What runs.
        cluster: The machine.
        device_of: Part -> device, every part; inputs may be left out.
        objective: As `plan_graph`.
        costs: As `plan_graph`.
        optimizer: As `plan_graph`.
        training: As `plan_graph`.

    Raises:
        DeclarationError: names that are not parts, or parts that are left out.
        DeviceError: a device that is not in the cluster.
    """
    check_choice("objective", objective, OBJECTIVES)
    request = Request(
        graph,
        cluster,
        objective=objective,
        costs=costs or Roofline(),
        optimizer=optimizer_name(optimizer),
        training=training,
    )
    full = _checked(graph, cluster, device_of)
    plan = assemble(
        request,
        tuple(
            Placement(p.name, full[p.name], ", ".join(p.on), "given")
            for p in graph.parts
        ),
    )
    free = _free_groups(request)
    if objective in STEADY:
        bound = request.steady(free).bound()
    else:
        bound = lower_bound(request.board(free))
    return replace(plan, strategy="given", bound=min(bound, plan.value))


def _checked(
    graph: Graph, cluster: Cluster, device_of: Mapping[str, str]
) -> dict[str, str]:
    full = {p.name: cluster.home.name for p in graph.parts if p.kind == "input"}
    faults = [
        f"there is no part {name!r}" for name in device_of if name not in graph.part
    ]
    missing = [
        p.name for p in graph.parts if p.name not in device_of and p.name not in full
    ]
    faults += [f"part {name!r} has no device" for name in missing]
    if faults:
        raise DeclarationError(
            f"device_of must name every part of {graph.name!r}: {'; '.join(faults[:8])}"
            f". It has: {', '.join(list(graph.part)[:12])}."
        )
    for part, device in device_of.items():
        try:
            full[part] = _device(cluster, device)
        except DeviceError as error:
            raise DeviceError(f"part {part!r}: {error}") from None
    return full


def _device(cluster: Cluster, name: str) -> str:
    """A device by any spelling; a kind means its first."""
    kind = device_name(name)
    same = cluster.of_kind(kind) if is_kind(kind) else ()
    return same[0].name if same else cluster[name].name


def wishes_of(plan: Plan) -> tuple[Request, list[Group]]:
    """What a plan was asked, and its groups; read back from `Placement.requested`.

    A part that is where its wish does not allow counts as free.
    """
    asked = {p.part: p.requested.split(", ") for p in plan.placements if p.requested}
    request = Request(
        plan.graph,
        plan.cluster,
        objective=plan.objective,
        costs=plan.costs,
        optimizer=plan.optimizer,
        training=plan.training,
        pins=lambda part: asked.get(part.name, "auto"),
    )
    try:
        groups = request.resolve()[1]
    except SplitnetError:
        groups = _free_groups(request)
    device_of = plan.device_of
    everywhere = tuple(device.name for device in plan.cluster)
    return request, [
        group
        if all(device_of[part] in group.allowed for part in group.parts)
        else replace(group, allowed=everywhere, apart=())
        for group in groups
    ]


def bound_of(plan: Plan) -> float:
    """What no placement that keeps a plan's wishes can beat; see `Plan.bound`.

    0 where nothing is proven.
    """
    request, groups = wishes_of(plan)
    if plan.objective in STEADY:
        return min(plan.value, request.steady(groups).bound())
    return min(plan.value, proven_bound(request.board(groups)))
