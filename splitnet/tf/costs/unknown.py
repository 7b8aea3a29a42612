"""Calls that no formula knows: how to make them for a trace, and what if that fails."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras

from splitnet.tf.costs.traced import trace
from splitnet.tf.costs.value import Case, Work, weight_sizes

__all__ = ["unknown"]


def unknown(case: Case) -> Work:
    """Trace the call; if it cannot be traced so, a guess that says so."""
    operation, name = case.operation, type(case.operation).__name__
    refused = ""
    for call in _ways(case):
        try:
            found = trace(call, case.inputs, getattr(operation, "variables", ()))
        except Exception as error:  # somebody else's code: it may raise anything
            refused = refused or type(error).__name__
        else:
            return found.work(f"{name}: counted by tracing it")
    parameters = sum(s.elements for s in weight_sizes(operation))
    positions = case.output.elements / max(case.output.shape[-1:] or (1,))
    return Work(
        matrix_flops=2.0 * parameters * positions,
        saves_inputs=tuple(range(len(case.inputs))),
        note=f"{name}: guessed from its weights, since tracing raised {refused}",
    )


def _ways(case: Case) -> list[Callable[..., Any]]:
    """How the call may be made with as many tensors as it has inputs.

    Without its positional arguments, it takes its tensors one by one or as one list.
    """
    operation, kwargs = case.operation, dict(case.kwargs)
    if "training" in inspect.signature(operation.call).parameters:
        kwargs["training"] = kwargs.get("training") in (None, True)
    leaves = keras.tree.flatten(kwargs)
    named = sum(isinstance(leaf, keras.KerasTensor) for leaf in leaves)

    def as_called(*tensors: Any) -> Any:
        args, named = _with((case.args, kwargs), tensors)
        return operation(*args, **named)

    def one_by_one(*tensors: Any) -> Any:
        first = len(tensors) - named
        return operation(*tensors[:first], **_with(kwargs, tensors[first:]))

    def as_list(*tensors: Any) -> Any:
        first = len(tensors) - named
        return operation(list(tensors[:first]), **_with(kwargs, tensors[first:]))

    return [as_called] if case.args is not None else [one_by_one, as_list]


def _with(arguments: Any, tensors: Sequence[Any]) -> Any:
    """The same arguments, their symbolic tensors replaced by these, in order."""
    waiting = iter(tensors)
    return keras.tree.map_structure(
        lambda leaf: next(waiting) if isinstance(leaf, keras.KerasTensor) else leaf,
        arguments,
    )
