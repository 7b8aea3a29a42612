"""Compile functions with numba, and keep the machine code in a folder that is writable.

numba's own cache compares each file with its stamp and misses changes of the functions
it calls in other files. So the folder's name holds a digest of the whole package:
`__pycache__/engine-<digest>` beside it, or the same in the user's cache folder. Without
a writable folder each process compiles anew.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

from splitnet.core.serialization import user_cache

Function = TypeVar("Function", bound=Callable[..., Any])
Xorshift = npt.NDArray[np.uint64]

_HERE = Path(__file__).parent


def _cache_folder() -> Path | None:
    """Folder of the compiled code, made if needed; None if no place is writable."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted([*_HERE.glob("*.py"), _HERE.parent / "load_graph.py"]):
        digest.update(path.read_bytes())
    name = f"engine-{digest.hexdigest()[:12]}"
    for parent in (_HERE / "__pycache__", *user_cache()):
        try:
            (parent / name).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=parent / name).close()
        except OSError:
            continue
        for other in parent.glob("engine-*"):
            if other.name != name:
                shutil.rmtree(other, ignore_errors=True)
        return parent / name
    return None


_CONFIG: Any = numba.config  # its fields are set when it is imported

INTERPRETED = bool(_CONFIG.DISABLE_JIT)
"""Whether functions are not compiled at all (NUMBA_DISABLE_JIT=1)."""

_CACHE = Path(_CONFIG.CACHE_DIR) if _CONFIG.CACHE_DIR else _cache_folder()


def entry(function: Function, *, inner: bool = False) -> Function:
    """Compile a function at its first call for each tuple of argument types."""
    before = _CONFIG.CACHE_DIR
    _CONFIG.CACHE_DIR = str(_CACHE) if _CACHE else ""
    try:
        njit: Any = numba.njit  # the stubs lack some options
        return njit(  # type: ignore[no-any-return]  # untyped upstream
            function,
            cache=_CACHE is not None and not inner,
            nogil=True,
            no_cfunc_wrapper=True,
            no_cpython_wrapper=inner,
            error_model="numpy",
            _nrt=False,
            no_rewrites=True,
            fastmath={"nsz", "arcp", "contract", "afn"},
        )
    finally:
        _CONFIG.CACHE_DIR = before


def compiled(function: Function) -> Function:
    """Compile a function that only compiled functions call."""
    return entry(function, inner=True)


def is_compiled(name: str) -> bool:
    """Whether the entry of this name is in the cache folder."""
    return _CACHE is not None and any(_CACHE.rglob(f"*.{name}-*.nbi"))


def random_state(seed: int) -> Xorshift:
    """State of the generator: never 0, and mixed so that near seeds differ."""
    return np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1)


@compiled
def uniform(state: Xorshift) -> float:
    """Random number in [0, 1): xorshift64 of Marsaglia (2003)."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return float(x >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
def below(state: Xorshift, count: int) -> int:
    """Random integer in [0, count)."""
    return int(uniform(state) * count)
