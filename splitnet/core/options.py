"""The runtime settings there are: what each takes, and which call tells TensorFlow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from splitnet.core.errors import SplitnetError
from splitnet.core.units import parse_bytes

__all__ = ["ENVIRONMENT_PREFIX", "OPTIONS", "Option"]

ENVIRONMENT_PREFIX = "SPLITNET_"


def _flag(value: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ValueError("must be true or false")


def _count(value: object) -> int:
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number, 1 or more")
    return value


def _share(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # what cannot be one is caught
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number <= 1:
        raise ValueError("must be a share of each GPU's memory, above 0 and up to 1")
    return number


def _amount(value: object) -> int:
    try:
        count = parse_bytes(value, "memory")
    except SplitnetError:
        count = 0
    if count < 2**20:
        raise ValueError("must be 1 MiB or more, such as '4 GiB' or a number of bytes")
    return count


def _visible(value: object) -> tuple[int, ...] | None:
    """The indices of GPUs; "all" is None, "none" is ()."""
    if isinstance(value, str):
        words = {"all": None, "none": (), "": ()}
        if value.strip().lower() in words:
            return words[value.strip().lower()]
        value = [part.strip() for part in value.split(",")]
    items = list(value) if isinstance(value, list | tuple | range) else [value]
    try:
        indices = [int(i) if isinstance(i, str) else i for i in items]
    except ValueError:
        indices = [None]
    if not all(_is_index(i) for i in indices) or len(dict.fromkeys(indices)) != len(
        indices
    ):
        raise ValueError(
            "must be GPU indices such as '0,1', each once, 'all' or 'none'"
        )
    return tuple(i for i in indices if isinstance(i, int))


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _log(value: object) -> str | bool:
    if value in ("branches", "ops"):
        return str(value)
    try:
        return "branches" if _flag(value) else False
    except ValueError:
        raise ValueError("must be 'branches', 'ops', true or false") from None


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that can be set. `late` options may change after TensorFlow started.

    A default of None leaves TensorFlow's own.
    """

    name: str
    parse: Callable[[object], object]
    default: object
    call: str
    about: str
    late: bool = False

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()


_LOGICAL = "tf.config.set_logical_device_configuration"
_THREADS = "tf.config.threading.set_{}_op_parallelism_threads"

OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option(
            "visible",
            _visible,
            None,
            "tf.config.set_visible_devices",
            "which GPUs to use, counted under CUDA_VISIBLE_DEVICES: '0,1', all, none",
        ),
        Option(
            "memory_growth",
            _flag,
            None,
            "tf.config.experimental.set_memory_growth",
            "take GPU memory as it is needed; all visible GPUs alike",
        ),
        Option(
            "memory_limit",
            _amount,
            None,
            _LOGICAL,
            "memory of each GPU that may be used: '4 GiB'",
        ),
        Option(
            "memory_fraction",
            _share,
            None,
            _LOGICAL,
            "the same as a share of each card: 0.5 (needs nvidia-ml-py)",
        ),
        Option(
            "logical_gpus",
            _count,
            None,
            _LOGICAL,
            "cut each GPU into so many; needs a memory limit or fraction",
        ),
        Option(
            "cpu_devices",
            _count,
            None,
            _LOGICAL,
            "how many CPU devices; stand-ins for GPUs are made of them",
        ),
        Option(
            "cpu_threads",
            _count,
            None,
            f"{_THREADS.format('intra')}, OMP_NUM_THREADS",
            "threads within an operation, and across unless said otherwise",
        ),
        Option(
            "inter_op_threads",
            _count,
            None,
            _THREADS.format("inter"),
            "threads across operations",
        ),
        Option(
            "soft_placement",
            _flag,
            None,
            "tf.config.set_soft_device_placement",
            "may TensorFlow silently use another device if one is missing",
            late=True,
        ),
        Option(
            "log_placement",
            _log,
            None,
            "tf.debugging.set_log_device_placement",
            "'branches': a line per branch when a model is emitted; 'ops': every op",
            late=True,
        ),
        Option(
            "determinism",
            _flag,
            None,
            "tf.config.experimental.enable_op_determinism",
            "the same bits in every run; slower",
            late=True,
        ),
    )
}
