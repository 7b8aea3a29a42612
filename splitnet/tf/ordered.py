"""Keeping a step from overtaking what was done to a worker's variables before it.

TensorFlow hands operations outside of functions to a worker and goes on at once; a
function reaches the worker by another way. After `set_weights`, `load_weights` or a
callback that restores weights, a step could so run on the old values, or on none.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from splitnet.tf.context import settle

__all__ = ["keep_in_order"]

_MAKERS = ("train", "test", "predict")


def keep_in_order(model: Any, targets: Iterable[str]) -> None:
    """Let each step of a model wait for what came before it, if it uses workers.

    Costs a call to each worker a step; a model of this machine alone is left alone.
    """
    if not any(target.startswith("/job:") for target in targets):
        return
    for kind in _MAKERS:
        make = getattr(model, f"make_{kind}_function")
        vars(model)[f"make_{kind}_function"] = _making(model, f"{kind}_function", make)


def _making(model: Any, name: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """As Keras makes the function, with the wait in front of every run."""

    @functools.wraps(make)
    def making(*args: Any, **kwargs: Any) -> Any:
        settle(ask=True)
        make(*args, **kwargs)
        run = getattr(model, name)
        if run is not None and not hasattr(run, "_settles"):
            setattr(model, name, _settled(run))
        return getattr(model, name)

    return making


def _settled(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def settled(*args: Any, **kwargs: Any) -> Any:
        settle()
        return run(*args, **kwargs)

    vars(settled)["_settles"] = True
    return settled
