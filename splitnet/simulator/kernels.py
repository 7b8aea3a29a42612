"""The memory of graphs and kernels: what a worker needs to run calls and updates."""

from collections.abc import Mapping, Sequence

from splitnet.core.graph import Call, Graph

__all__ = ["code_bytes"]

# Measured on CPU workers with chains of twelve to a hundred equal small calls: some
# 20 kB for each operation of a call and its backward pass. A layer that is not here
# counts as a Dense one.
_CALL_BYTES = 100_000
_BYTES_OF_KIND = {
    "Conv1D": 200_000,
    "Conv2D": 200_000,
    "Conv3D": 200_000,
    "LayerNormalization": 420_000,
    "BatchNormalization": 550_000,
    "MultiHeadAttention": 1_100_000,
    "LSTM": 3_000_000,
    "GRU": 3_000_000,
}

# And of an update, for each of the optimizer's slots beside the weight.
_UPDATE_BYTES = 150_000


def code_bytes(
    graph: Graph,
    slot_copies: int,
    calls_of: Mapping[str, Sequence[Call]] | None = None,
) -> list[int]:
    """What each call of a graph takes of the process that runs it, beside tensors.

    Args:
        graph: A weight is updated where the first call that uses it runs.
        slot_copies: Of the optimizer.
        calls_of: The calls that one stands for, by its name; itself if not there.
    """
    many = calls_of or {}
    found = {
        call.name: sum(
            _BYTES_OF_KIND.get(one.kind, _CALL_BYTES)
            for one in many.get(call.name, (call,))
        )
        for call in graph.calls
    }
    owner: dict[str, str] = {}
    for call in graph.calls:
        for name in call.weights:
            owner.setdefault(name, call.name)
    for name, home in owner.items():
        found[home] += _UPDATE_BYTES * slot_copies * graph.weight[name].trainable
    return list(found.values())
