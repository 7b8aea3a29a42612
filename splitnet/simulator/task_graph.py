"""Task dependencies of one training step, the same for every placement.

A unit has up to three tasks. Tasks are numbered in the order in which ties are broken:
forward tasks in the order of the units, backward tasks in reverse order, then updates.

    forward of unit u    u
    backward of unit u   2n - 1 - u
    update of unit u     2n + u
"""

from collections.abc import Sequence
from dataclasses import dataclass

COPY_KINDS = ("activation", "gradient", "weights", "weights gradient")
ACTIVATION, GRADIENT, WEIGHTS, WEIGHTS_GRADIENT = range(4)


@dataclass(frozen=True, slots=True)
class Edge:
    """One output tensor of a unit, and the units that read it.

    Attributes:
        source: The unit that computes the tensor.
        readers: The other units that read it; none for an output of the model.
        bytes: Its size.
        gradients_from: The readers whose backward task returns a gradient.
        saved_by: The units, `source` among them, whose backward task reads the tensor.
        seconds: Time of a copy if the graph knows it, whatever the link.
        view_of: The edge that is copied instead if both tensors leave one function,
            because this one only renames its bytes.
    """

    source: int
    readers: tuple[int, ...]
    bytes: int
    gradients_from: tuple[int, ...] = ()
    saved_by: tuple[int, ...] = ()
    seconds: float | None = None
    view_of: int | None = None


@dataclass(frozen=True, slots=True)
class SharedWeight:
    """A weight that several units use. Its home is the device of `users[0]`.

    `gradients_from` lists the users whose backward task makes a gradient. `row_bytes`,
    if given, is per such user: above 0, the gradient is that many bytes of rows of an
    embedding table instead of the whole.
    """

    name: str
    bytes: int
    users: tuple[int, ...]
    gradients_from: tuple[int, ...] = ()
    row_bytes: tuple[int, ...] = ()

    @property
    def has_rows(self) -> bool:
        """Whether its gradient is rows alone, side by side."""
        return bool(self.row_bytes) and all(self.row_bytes)

    @property
    def gradient_bytes(self) -> int:
        """The size of its whole gradient; 0 if it has none."""
        if self.has_rows:
            return sum(self.row_bytes)
        return self.bytes if self.gradients_from else 0


@dataclass(frozen=True, slots=True)
class GradientReduction:
    """The sum of the gradients of one tensor or one shared weight.

    Contributors on one device are summed there, and the sum crosses once to the device
    of `task`, which waits for one sum per device.

    Attributes:
        kind: GRADIENT or WEIGHTS_GRADIENT.
        item: The number of the edge or of the shared weight.
        contributors: Backward tasks.
        task: The backward task of the source, or the update task of the home.
        bytes: The size of the sum.
        row_bytes: As in `SharedWeight`.
    """

    kind: int
    item: int
    contributors: tuple[int, ...]
    task: int
    bytes: int
    row_bytes: tuple[int, ...] = ()

    def bytes_from(self, present: Sequence[bool]) -> int:
        """Bytes of the sum of those contributors that are `present`.

        Rows are sent side by side; a whole gradient is sent once.
        """
        if not self.row_bytes:
            return self.bytes
        rows = [size for size, here in zip(self.row_bytes, present) if here]
        return sum(rows) + (0 if all(rows) else self.bytes)


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """What every task waits for and starts; lists per task.

    Attributes:
        pending: How many tasks and tensors a task depends on, reductions left out.
        successors: Tasks that depend on it directly, on the same device.
        outputs: Per unit, the edges that its forward task makes.
        contributes: The reductions to which the task contributes.
        reductions: All of them.
    """

    pending: tuple[int, ...]
    successors: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    contributes: tuple[tuple[int, ...], ...]
    reductions: tuple[GradientReduction, ...]


def task_graph(
    edges: Sequence[Edge],
    weights: Sequence[SharedWeight],
    has_backward: Sequence[bool],
    has_update: Sequence[bool],
    waits: Sequence[tuple[int, int]] = (),
) -> TaskGraph:
    """Number the tasks of a step and connect them. O(units + edges).

    `weights` are those of several units, `waits` pairs (task, other): the one starts
    after the other.
    """
    n = len(has_backward)
    last = 2 * n - 1
    pending = [0] * (3 * n)
    successors: list[list[int]] = [[] for _ in range(3 * n)]
    outputs: list[list[int]] = [[] for _ in range(n)]
    contributes: list[list[int]] = [[] for _ in range(3 * n)]
    reductions: list[GradientReduction] = []
    after = list(waits)
    after += [(last - u, u) for u in range(n) if has_backward[u]]
    after += [
        (2 * n + u, last - u) for u in range(n) if has_backward[u] and has_update[u]
    ]
    for task, other in after:
        successors[other].append(task)
        pending[task] += 1
    for number, edge in enumerate(edges):
        outputs[edge.source].append(number)
        for reader in edge.readers:
            pending[reader] += 1
    summed: list[tuple[int, int, Edge | SharedWeight, int]] = [
        *((GRADIENT, i, one, last - one.source) for i, one in enumerate(edges)),
        *((WEIGHTS_GRADIENT, i, w, 2 * n + w.users[0]) for i, w in enumerate(weights)),
    ]
    for kind, item, one, task in summed:
        if one.gradients_from:
            contributors = tuple(last - user for user in one.gradients_from)
            for contributor in contributors:
                contributes[contributor].append(len(reductions))
            rows = one.row_bytes if isinstance(one, SharedWeight) else ()
            reductions.append(
                GradientReduction(kind, item, contributors, task, one.bytes, rows)
            )
    return TaskGraph(
        tuple(pending),
        tuple(map(tuple, successors)),
        tuple(map(tuple, outputs)),
        tuple(map(tuple, contributes)),
        tuple(reductions),
    )
