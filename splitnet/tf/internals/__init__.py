"""Every private name of Keras and TensorFlow that splitnet uses, checked at import.

No other module uses one; `tests/tf/internals` holds that. What each is needed for
stands in docs/compatibility.md.
"""

import dis
import importlib
import inspect
import pkgutil
import tomllib
from pathlib import Path

import keras
import tensorflow as tf

from splitnet.core.errors import ConfigError

KERAS = ((3, 12), (3, 15))
TENSORFLOW = ((2, 20), (2, 21))

_NAMES = Path(__file__).with_name("private_names.toml")
PRIVATE: dict[str, dict[str, str]] = tomllib.loads(_NAMES.read_text("utf-8"))
"""Of each library: "module:class", and the attributes of it that are read or set."""


def missing(module: str, needed: dict[str, str]) -> list[str]:
    """Faults for what a module cannot import, and for attributes that are gone.

    An attribute is there if the class has it, or a method of it sets it.
    """
    try:
        importlib.import_module(f"{__name__}.{module}")
        owners = {path: pkgutil.resolve_name(path) for path in needed}
    except (ImportError, AttributeError) as error:
        return [str(error)]
    faults = []
    for path, owner in owners.items():
        classes = getattr(owner, "__mro__", ())
        members = [member for one in classes for member in vars(one).values()]
        functions = [inspect.unwrap(getattr(v, "fget", v)) for v in members]
        gone = {name for name in needed[path].split() if not hasattr(owner, name)}
        for code in [f.__code__ for f in functions if hasattr(f, "__code__")]:
            if not gone.isdisjoint(code.co_names):
                steps = dis.get_instructions(code)
                gone -= {s.argval for s in steps if s.opname == "STORE_ATTR"}
        faults += [f"{owner.__name__}.{name} is gone" for name in sorted(gone)]
    return faults


def check_versions() -> None:
    """Refuse versions and backends that splitnet cannot place models with."""
    if (backend := keras.backend.backend()) != "tensorflow":
        fault = f"splitnet cannot place models with the Keras backend {backend!r}"
        raise ConfigError(f"{fault}; set KERAS_BACKEND=tensorflow before any import.")
    for library, module, here, (low, high) in (
        ("Keras", "keras_api", keras.__version__, KERAS),
        ("TensorFlow", "tf_api", tf.__version__, TENSORFLOW),
    ):
        faults = missing(module, PRIVATE[library.lower()])
        lowest, highest = (".".join(map(str, version)) for version in (low, high))
        if not low <= tuple(map(int, here.split(".")[:2])) <= high:
            faults.append(f"{library} {here} is outside {lowest} to {highest}")
        if faults:
            text = (
                f"splitnet cannot place models with {library} {here}; it is tested "
                f"with {lowest} to {highest}. Try: pip install "
                f"'{library.lower()}>={lowest},<{high[0]}.{high[1] + 1}'"
            )
            raise ConfigError(text, faults)


check_versions()
