"""Devices: the name a user says, the name TensorFlow is told, memory and speed."""

import re
from dataclasses import dataclass

from splitnet.core.errors import DeviceError
from splitnet.core.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds

__all__ = ["KINDS", "PRESETS", "Device", "device_name", "is_kind", "tensorflow_name"]

KINDS = ("gpu", "cpu")

_SHORT = re.compile(
    r"/?(?:(?P<job>[a-z]\w*):(?P<task>\d+)/)?(?P<kind>gpu|cpu):(?P<n>\d+)"
)
_LONG = re.compile(
    r"(?:/?job:(?P<job>[a-z_]\w*))?(?:/replica:\d+)?(?:/?task:(?P<task>\d+))?"
    r"/?(?:device:)?(?P<kind>gpu|cpu):(?P<n>\d+)"
)

# name -> memory, FLOP/s in float32 as a dense layer meets it, memory bandwidth, seconds
# lost per call. From the vendors' data sheets (TF32 where the chip has it, at half of
# peak, which is about what large matrix products reach); a measurement beats them.
PRESETS = {
    "A100": ("80 GB", "78 TFLOP/s", "2.0 TB/s", "8 us"),
    "H100": ("80 GB", "247 TFLOP/s", "3.35 TB/s", "6 us"),
    "H200": ("141 GB", "247 TFLOP/s", "4.8 TB/s", "6 us"),
    "RTX 4090": ("24 GB", "41 TFLOP/s", "1.0 TB/s", "8 us"),
    "gpu": ("16 GiB", "10 TFLOP/s", "500 GB/s", "10 us"),
    "CPU core": ("64 GiB", "50 GFLOP/s", "10 GB/s", "5 us"),
    "cpu": ("64 GiB", "400 GFLOP/s", "50 GB/s", "5 us"),
}

# Seconds lost per call of a function, by kind. Measured on CPUs: see `docs/`.
PART_SECONDS = {"gpu": 20e-6, "cpu": 30e-6}


@dataclass(frozen=True, slots=True)
class Device:
    """One processor with memory of its own.

    `flops_per_second` and `bytes_per_second` (its memory's bandwidth) bound a call from
    below; `call_seconds` is what starting a kernel costs, `part_seconds` what calling a
    part's function costs. `target` is the name TensorFlow is told: another device's
    when this one is a stand-in.
    """

    name: str
    kind: str
    target: str
    memory_bytes: int
    flops_per_second: float
    bytes_per_second: float
    call_seconds: float = 1e-5
    stand_in: bool = False
    part_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse figures and names that no device has.

        Raises:
            DeviceError: with every fault.
        """
        faults = [
            f"{name} must be {least}. Received: {getattr(self, name)!r}"
            for name, least, fits in (
                ("memory_bytes", "0 or more", self.memory_bytes >= 0),
                ("flops_per_second", "more than 0", self.flops_per_second > 0),
                ("bytes_per_second", "more than 0", self.bytes_per_second > 0),
            )
            if not fits
        ]
        if device_name(self.name) != self.name or is_kind(self.name):
            faults.append(f"its name must be {device_name(self.name)!r}")
        if self.kind != self.name.rpartition("/")[2].partition(":")[0]:
            faults.append(f"it cannot be of kind {self.kind!r}")
        if self.target != tensorflow_name(device_name(self.target)):
            faults.append(f"TensorFlow has no device {self.target!r}")
        if faults:
            raise DeviceError(f"invalid device {self.name!r}: {'; '.join(faults)}.")

    @property
    def host(self) -> str:
        """The machine it sits in: "worker:1", or "" for this one."""
        return self.name.rpartition("/")[0]

    @classmethod
    def of(
        cls,
        name: str,
        *,
        memory: object = None,
        speed: object = None,
        bandwidth: object = None,
        overhead: object = None,
        preset: str | None = None,
        target: str | None = None,
        stand_in: bool = False,
    ) -> "Device":
        """Make a device from its name and what is known of it; presets fill the rest.

        Quantities are text with a unit, or numbers of bytes, FLOP/s, bytes/s, seconds.

        Args:
            name: "gpu:0", "cpu", "worker:1/gpu:0", or as TensorFlow writes it.
            memory: "16 GiB".
            speed: "40 TFLOP/s".
            bandwidth: of its memory: "1 TB/s".
            overhead: lost per call: "8 us".
            preset: "A100", "H100" and so on; its kind's unless said.
            target: the name TensorFlow is told; that of `name` unless said.
            stand_in: whether it plays a device of another kind.

        Raises:
            DeviceError: an impossible name, quantity or preset.

        Examples:
            >>> Device.of("/device:GPU:1", memory="16 GiB").name
            'gpu:1'
        """
        name = device_name(name)
        if is_kind(name):
            name = f"{name}:0"
        kind = name.rpartition("/")[2].partition(":")[0]
        wanted = preset or kind
        if wanted not in PRESETS:
            raise DeviceError(
                f"there is no preset {wanted!r}. Known: {', '.join(PRESETS)}."
            )
        defaults = PRESETS[wanted]
        return cls(
            name=name,
            kind=kind,
            target=target or tensorflow_name(name),
            memory_bytes=parse_bytes(
                defaults[0] if memory is None else memory, f"memory of {name}"
            ),
            flops_per_second=_positive(
                parse_flops(
                    defaults[1] if speed is None else speed, f"speed of {name}"
                ),
                f"speed of {name}",
            ),
            bytes_per_second=_positive(
                parse_bandwidth(
                    defaults[2] if bandwidth is None else bandwidth,
                    f"bandwidth of {name}",
                ),
                f"bandwidth of {name}",
            ),
            call_seconds=parse_seconds(
                defaults[3] if overhead is None else overhead, f"overhead of {name}"
            ),
            stand_in=stand_in,
            part_seconds=PART_SECONDS[kind],
        )


def _positive(value: float, what: str) -> float:
    if value <= 0:
        raise DeviceError(f"{what} must be more than zero. Received: {value!r}.")
    return value


def is_kind(name: str) -> bool:
    """Say whether `name` means any device of a kind rather than one device."""
    return name in KINDS


def device_name(text: object) -> str:
    """Bring the many spellings of a device to one: "gpu:1", or a kind: "gpu".

    A device of another machine keeps it in front: "worker:1/gpu:0".

    Raises:
        DeviceError: not the name of a device or a kind.

    >>> [device_name(t) for t in ("/gpu:1", "GPU:1", "/device:GPU:1", "cpu")]
    ['gpu:1', 'gpu:1', 'gpu:1', 'cpu']
    >>> device_name("/job:worker/replica:0/task:1/device:GPU:0")
    'worker:1/gpu:0'
    """
    if not isinstance(text, str):
        raise DeviceError(
            f"a device is named by a text such as 'gpu:0' or 'cpu'. Received: {text!r} "
            f"({type(text).__name__})."
        )
    plain = text.strip().lower().removeprefix("/device:").removeprefix("/")
    if plain in KINDS:
        return plain
    match = _SHORT.fullmatch(plain) or _LONG.fullmatch(plain)
    if match is None:
        raise DeviceError(
            f"there is no device {text!r}. Write 'gpu:0', 'gpu', 'cpu', "
            "'/device:GPU:0', 'worker:1/gpu:0' or '/job:worker/task:1/device:GPU:0'."
        )
    local = f"{match['kind']}:{int(match['n'])}"
    if match["job"] in (None, "localhost"):
        return local
    return f"{match['job']}:{int(match['task'] or 0)}/{local}"


def tensorflow_name(name: str) -> str:
    """Write a device's name as TensorFlow reads it.

    >>> tensorflow_name("gpu:1"), tensorflow_name("worker:1/gpu:0")
    ('/device:GPU:1', '/job:worker/replica:0/task:1/device:GPU:0')
    """
    host, _, local = name.rpartition("/")
    kind, _, index = local.partition(":")
    device = f"/device:{kind.upper()}:{index}"
    if not host:
        return device
    job, _, task = host.partition(":")
    return f"/job:{job}/replica:0/task:{task}{device}"
