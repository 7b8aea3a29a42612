"""A short fingerprint of a layer's configuration, to tell one layer from another."""

import hashlib
import json
from typing import Any

import keras

__all__ = ["settings_of"]

_IGNORED = ("name", "seed", "trainable", "dtype", "build_config", "registered_name")
_COUNTED = ("keras_tensor", "shared_object_id", "module", "batch_shape", "sparse")


def settings_of(operation: Any) -> str:
    """The activation of a layer and a digest of its configuration; "" if unknown.

    Names, seeds and types are left out: models that are built twice differ in them.
    """
    if not isinstance(operation, keras.layers.Layer):
        return ""
    if isinstance(operation, keras.Model | keras.layers.Lambda):
        return ""
    try:
        config = _plain(operation.get_config())
    except Exception:  # a user's get_config may raise anything
        return ""
    text = json.dumps(config, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    activation = getattr(operation, "activation", None)
    name = getattr(activation, "__name__", "")
    return f"{name} #{digest}" if name else f"#{digest}"


def _plain(value: Any) -> Any:
    """Numbers, texts and what holds them; of anything else the name of its class."""
    if isinstance(value, dict):
        ignored = (*_IGNORED, *_COUNTED)
        return {str(k): _plain(v) for k, v in value.items() if k not in ignored}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return type(value).__name__
