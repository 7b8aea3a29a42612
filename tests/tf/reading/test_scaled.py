"""Costs of calls that differ in sizes alone."""

import random
from collections.abc import Callable
from functools import partial

import pytest

from splitnet.tf.reading.call_cost import Scaled
from splitnet.tf.reading.traced import Size, Work

COSTS: dict[str, Callable[[int, int], Work]] = {
    "linear": lambda a, b: Work(other_flops=2.0 * a, moved_bytes=4.0 * (a + b)),
    "constant": lambda a, b: Work(matrix_flops=7.0),
    "fractions": lambda a, b: Work(other_flops=a / 4 + b, inner_bytes=4 * b),
    "halves, rounded up": lambda a, b: Work(inner_bytes=(a + 1) // 2),
    "product": lambda a, b: Work(matrix_flops=2.0 * a * b, moved_bytes=4.0 * a),
    "falling": lambda a, b: Work(workspace_bytes=max(0, 100 - a)),
}


@pytest.mark.parametrize("name", COSTS)
def test_cost_of_a_size_is_that_of_its_trace(name: str) -> None:
    """Sizes in any order, and twice: the cost is the traced one."""
    for seed in range(20):
        draw = random.Random(seed)
        scaled = Scaled()
        for _ in range(30):
            a, b = draw.randint(1, 99), draw.randint(1, 99)
            sizes = (Size((a,)), Size((b,)))
            assert scaled.cost(sizes, partial(COSTS[name], a, b)) == COSTS[name](a, b)
