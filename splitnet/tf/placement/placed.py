"""A placed model, lowered once: what runs each of its calls, and where."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from splitnet.core.plan import Plan
from splitnet.simulator.microbatch import Pipeline
from splitnet.tf.placement.run import Run, Shared
from splitnet.tf.reading.flatten import Flow

__all__ = ["Placed", "Runner", "placed_of"]

ATTRIBUTE = "_splitnet"


class Runner(Protocol):
    """What runs some calls of a model: a part function, towers, a pipeline stage."""

    def run(self, run: Run) -> None:
        """Read inputs from a run, and give it the outputs."""


@dataclass(frozen=True, eq=False)
class Placed:
    """What an emitted model remembers: its plan, and where its parts really are.

    `flow` lists the calls, `runners` what runs them, in order. `key_of` maps a node's
    id to the key of its part, `keys_of` to those of the parts that run it if these are
    towers, `target_of` a key to a canonical device, `part_of` a key to the part's name,
    `weight_of` a variable's id to the plan's name of it. `graphs` holds weak references
    to the step graphs made last, `scopes` the graphs whose ops are being placed,
    `warned` what was warned of, `shared` what the runs of the step that is being made
    have in common.
    """

    plan: Plan
    flow: Flow
    key_of: Mapping[int, str]
    keys_of: Mapping[int, tuple[str, ...]]
    target_of: Mapping[str, str]
    part_of: Mapping[str, str]
    weight_of: Mapping[int, str]
    runners: tuple[Runner, ...] = ()
    pipeline: Pipeline = field(default_factory=Pipeline)
    graphs: list[weakref.ref[Any]] = field(default_factory=list)
    scopes: list[Any] = field(default_factory=list)
    warned: set[str] = field(default_factory=set)
    shared: list[Shared] = field(default_factory=list)


def placed_of(model: Any) -> Placed | None:
    """The placement of an emitted model; None for any other."""
    found = getattr(model, "__dict__", {}).get(ATTRIBUTE)
    return found if isinstance(found, Placed) else None
