"""One question to the planner, with what every answer to it shares."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from splitnet.core.cluster import Cluster
from splitnet.core.cost import CostModel, Roofline
from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Graph
from splitnet.planner.board import Board, board_of
from splitnet.planner.steady import Steady, steady_of
from splitnet.planner.wishes import Group, Pins, Wish, resolve
from splitnet.simulator.step import Step, step_of

__all__ = ["OBJECTIVES", "Request", "check_choice"]

OBJECTIVES = ("latency", "throughput", "call_latency", "memory")


@dataclass(frozen=True)
class Request:
    """What to place, where, and what counts; `optimizer` is one of OPTIMIZER_SLOTS."""

    graph: Graph
    cluster: Cluster
    objective: str = "latency"
    costs: CostModel = field(default_factory=Roofline)
    optimizer: str = "adam"
    training: bool = True
    pins: Pins | None = None
    missing: str = "fallback"

    @cached_property
    def step(self) -> Step:
        """The step as numbers, call by call."""
        return step_of(
            self.graph,
            self.cluster,
            self.costs,
            training=self.training,
            optimizer=self.optimizer,
        )

    def resolve(
        self, *, whole_lists: bool = False
    ) -> tuple[dict[str, Wish], list[Group]]:
        """Wishes and groups; see `wishes.resolve`."""
        return resolve(
            self.graph,
            self.cluster,
            pins=self.pins,
            missing=self.missing,
            load_of=self._load,
            whole_lists=whole_lists,
        )

    def board(self, groups: Sequence[Group]) -> Board:
        """The board of the latency and memory search."""
        return board_of(self.graph, self.cluster, self.step, groups, self.objective)

    def steady(self, groups: Sequence[Group], objective: str = "") -> Steady:
        """The problem of the benchmark's search; of another objective than asked."""
        return steady_of(
            self.graph,
            self.cluster,
            self.step,
            self.costs,
            groups,
            objective=objective or self.objective,
            optimizer=self.optimizer,
            training=self.training,
        )

    @cached_property
    def _members(self) -> dict[str, list[int]]:
        members: dict[str, list[int]] = {}
        for i, call in enumerate(self.graph.calls):
            members.setdefault(call.part, []).append(i)
        return members

    def _load(self, part: str, device: str) -> float:
        """Seconds that a part computes on a device."""
        number = [d.name for d in self.cluster].index(device)
        step = self.step
        tables = (step.forward[number], step.backward[number], step.update[number])
        return sum(row[i] for i in self._members.get(part, ()) for row in tables)


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse an option that is none of its choices.

    Raises:
        DeclarationError: naming the option, the choices and what was received.
    """
    if value not in choices:
        raise DeclarationError(
            f"{name}= must be one of {', '.join(map(repr, choices))}. "
            f"Received: {value!r}."
        )
