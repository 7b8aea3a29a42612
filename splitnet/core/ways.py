"""The ways to use several devices, weighed against each other before any is built.

One device, the plan as it stands, towers over the GPUs, and the plan as a pipeline are
played by the same simulator with the same costs; the fastest is named, and if that is
one device, it is said so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from splitnet.core.cluster import Cluster
from splitnet.core.collapse import collapse
from splitnet.core.cost import CostModel
from splitnet.core.graph import Call, Graph, Part
from splitnet.core.pipeline import SCHEDULES, simulate_pipeline, stages_of
from splitnet.core.scaled import ScaledCosts, scaled_graph
from splitnet.core.shares import Towers, shares
from splitnet.core.simulate import Outcome, outcome_of
from splitnet.core.step import step_of
from splitnet.core.towers import expand, tower_part, towers_in, weights_part
from splitnet.core.units import format_seconds

if TYPE_CHECKING:
    from splitnet.core.plan import Plan

__all__ = ["Way", "Ways", "ways"]

_MICROBATCHES = (2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Way:
    """One way: `kind` is "one device", "plan", "towers" or "pipeline".

    `seconds` are of one step; `how` says how to get it; `fits` whether every device has
    room for it.
    """

    kind: str
    seconds: float
    how: str
    fits: bool = True


@dataclass(frozen=True, slots=True)
class Ways:
    """All ways that were weighed, the fastest that fits first."""

    all: tuple[Way, ...]

    @property
    def best(self) -> Way:
        """The fastest that fits; if none does, the fastest."""
        return self.all[0]

    def __getitem__(self, kind: str) -> Way:
        """The best way of a kind.

        Raises:
            KeyError: none of that kind could be weighed.
        """
        for way in self.all:
            if way.kind == kind:
                return way
        raise KeyError(kind)

    def __str__(self) -> str:
        """The verdict in a line, and a line for each way."""
        best = self.best
        rest = [w for w in self.all if w.kind == "one device" and w.fits]
        if best.kind == "one device":
            head = "several devices lose: one device is fastest"
        elif rest:
            times = rest[0].seconds / best.seconds
            head = f"{best.kind} is fastest, {times:.2f} times one device"
        else:
            head = f"{best.kind} is fastest; the model fits no single device"
        width = max(len(way.kind) for way in self.all)
        return "\n".join(
            [f"{head}: {best.how}."]
            + [
                f"  {way.kind:<{width}}  {format_seconds(way.seconds):>9}  {way.how}"
                f"{'' if way.fits else '; does not fit'}"
                for way in self.all
            ]
        )


def ways(plan: "Plan") -> Ways:
    """Weigh the ways to run a plan's model on its cluster, with the plan's costs.

    Nothing is planned anew: the pipeline keeps the plan's devices. Towers are of the
    whole model, over the first two, three ... GPUs, with weights on the CPU or on the
    first of them.
    """
    whole = collapse(plan.graph)
    found = [
        *_single(plan, whole),
        Way("plan", plan.timeline.seconds, _described(plan), _fits_plan(plan)),
        *_towers(plan, whole),
        *_pipelines(plan),
    ]
    kinds: dict[str, Way] = {}
    for way in sorted(found, key=lambda w: (not w.fits, w.seconds)):
        kinds.setdefault(way.kind, way)
    return Ways(tuple(kinds.values()))


def _described(plan: "Plan") -> str:
    used = list(dict.fromkeys(t.device for t in plan.timeline.tasks))
    kind = "towers and branches" if towers_in(plan.graph) else "branches"
    return f"emit(source, plan): {kind} on {', '.join(used[:6])}"


def _fits_plan(plan: "Plan") -> bool:
    return all(plan.memory[d.name].total <= d.memory_bytes for d in plan.cluster)


def _single(plan: "Plan", whole: Graph) -> Iterator[Way]:
    """Everything on one device of each kind; inputs are fed from the host."""
    stuck = {call.part for call in whole.calls if call.cpu_only}
    tried: set[tuple[object, ...]] = set()
    for device in plan.cluster:
        same = (device.kind, device.flops_per_second, device.memory_bytes, device.host)
        if same in tried:
            continue
        tried.add(same)
        home = plan.cluster.home.name
        device_of = {
            p.name: home
            if p.kind == "input" or (p.name in stuck and device.kind != "cpu")
            else device.name
            for p in whole.parts
        }
        made = _played(whole, plan, device_of, plan.costs)
        yield Way(
            "one device",
            made.timeline.seconds,
            f"all on {device.name}",
            _fits(plan.cluster, made),
        )


def _towers(plan: "Plan", whole: Graph) -> Iterator[Way]:
    gpus = [d.name for d in plan.cluster if d.kind == "gpu"]
    one = _as_one_part(whole)
    for count in range(2, len(gpus) + 1):
        if count > plan.batch:
            return
        for home in (plan.cluster.home.name, gpus[0]):
            yield _tower(plan, one, gpus[:count], home)


def _tower(plan: "Plan", one: Graph, devices: list[str], home: str) -> Way:
    """The whole model on each of some devices, its weights at home."""
    name = one.parts[-1].name
    towers = Towers(tuple((d,) for d in devices), (home,))
    sizes = shares(one.batch, len(devices))
    smaller = {n: scaled_graph(one, n) for n in set(sizes)}
    graph = expand(one, smaller, {name: towers})
    device_of = dict.fromkeys((p.name for p in graph.parts), plan.cluster.home.name)
    if weights_part(name) in device_of:
        device_of[weights_part(name)] = home
    costs: dict[str, tuple[tuple[Call, ...], float]] = {}
    for i, (device, size) in enumerate(zip(devices, sizes)):
        part = tower_part(name, i)
        device_of[part] = device
        for call in graph.calls_of[part]:
            plain = f"{name}/{call.name.removeprefix(part + '/')}"
            costs[call.name] = ((one.call[plain],), size / one.batch)
    made = _played(graph, plan, device_of, ScaledCosts(plan.costs, costs))
    where = f"weights_on={home!r}"
    return Way(
        "towers",
        made.timeline.seconds,
        f"data_parallel(model, devices={devices}, {where})",
        _fits(plan.cluster, made),
    )


def _as_one_part(graph: Graph) -> Graph:
    """All calls but the inputs as one part, the last, named for the model."""
    inputs = {p.name for p in graph.parts if p.kind == "input"}
    name = graph.name
    while name in inputs:
        name += "_towers"
    new = {
        call.name: call.name if call.part in inputs else f"{name}/{call.name}"
        for call in graph.calls
    }
    return replace(
        graph,
        calls=tuple(
            call
            if call.part in inputs
            else replace(call, name=new[call.name], part=name)
            for call in graph.calls
        ),
        tensors=tuple(
            replace(t, source=new[t.source], target=new[t.target])
            for t in graph.tensors
        ),
        parts=(*(p for p in graph.parts if p.name in inputs), Part(name, "towers")),
        outputs=tuple(new[n] for n in graph.outputs),
    )


def _pipelines(plan: "Plan") -> Iterator[Way]:
    """The plan in micro-batches, if its parts follow one another."""
    if stages_of(plan) < 2:
        return
    fits = _fits_plan(plan)
    for count in _MICROBATCHES:
        if count > plan.batch:
            return
        for schedule in SCHEDULES:
            made = simulate_pipeline(plan, count, schedule=schedule)
            room = all(made.peak_bytes[d.name] <= d.memory_bytes for d in plan.cluster)
            yield Way(
                "pipeline",
                made.seconds,
                f"emit(source, plan, microbatches={count}, schedule={schedule!r})",
                room or fits,
            )


def _played(
    graph: Graph, plan: "Plan", device_of: Mapping[str, str], costs: CostModel
) -> Outcome:
    step = step_of(
        graph, plan.cluster, costs, training=plan.training, optimizer=plan.optimizer
    )
    return outcome_of(graph, plan.cluster, step, device_of)


def _fits(cluster: Cluster, made: Outcome) -> bool:
    return all(made.memory[d.name].total <= d.memory_bytes for d in cluster)
