"""Wait for pending eager operations on workers before a `tf.function` runs.

TensorFlow sends operations outside of functions to a worker and does not wait; a
function reaches the worker by another way. After `set_weights`, `load_weights` or a
callback that restores weights, a step could so run on the old values, or on none.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from splitnet.core.plan import Plan
from splitnet.tf.runtime.configure import started

__all__ = ["add_barrier", "check_before_waiting", "parts_of", "wait_for_workers"]

_MAKERS = ("train", "test", "predict")
_plans: weakref.WeakKeyDictionary[Any, Plan] = weakref.WeakKeyDictionary()
_checks: list[Callable[[bool], None]] = []


def check_before_waiting(check: Callable[[bool], None]) -> None:
    """Call `check(ask)` before each wait; it raises if a worker is lost.

    `ask` says whether to ask the workers, or to go by what is known of them.
    """
    _checks[:] = [check]


def wait_for_workers(*, ask: bool = False) -> None:
    """Wait until workers have done what they were asked outside of any function.

    TensorFlow would wait for a lost worker without limit, so that is checked first.

    Raises:
        WorkerError: a worker is lost.
    """
    if started():
        for check in _checks:
            check(ask)
        from splitnet.tf.internals.tf_api import wait_for_eager_operations

        wait_for_eager_operations()


def parts_of(host: str) -> str:
    """The parts of all models on each device of a host, for a message."""
    found: dict[str, dict[str, None]] = {}
    for plan in _plans.values():
        for part, name in plan.device_of.items():
            if plan.cluster[name].host == host:
                found.setdefault(name, {})[part] = None
    return "; ".join(f"{name} ran {', '.join(ps)}" for name, ps in found.items())


def add_barrier(model: Any, plan: Plan) -> None:
    """Let each step of a model wait first, if it uses workers.

    Costs a call to each worker a step.
    """
    if not any(plan.cluster[name].host for name in plan.device_of.values()):
        return
    _plans[model] = plan
    for kind in _MAKERS:
        make = getattr(model, f"make_{kind}_function")
        vars(model)[f"make_{kind}_function"] = _making(model, f"{kind}_function", make)


def _making(model: Any, name: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """Keras' maker of a step function, with the wait added to what it makes."""

    @functools.wraps(make)
    def making(*args: Any, **kwargs: Any) -> Any:
        wait_for_workers(ask=True)
        make(*args, **kwargs)
        run = getattr(model, name)
        if run is not None and not hasattr(run, "_waits"):
            setattr(model, name, _waiting(run))
        return getattr(model, name)

    return making


def _waiting(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def waiting(*args: Any, **kwargs: Any) -> Any:
        wait_for_workers()
        return run(*args, **kwargs)

    vars(waiting)["_waits"] = True
    return waiting
