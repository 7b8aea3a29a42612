"""Sliced models made whole: one layer in the place of its slices, and its files.

A model with split layers is saved as the whole model, so its files fit any machine; a
file of the whole model is loaded into the slices.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import warn
from splitnet.tf.internals import keras_api
from splitnet.tf.placement.optimizer import all_optimizers, slots_of
from splitnet.tf.reading.cloner import Cloner, functional, input_like
from splitnet.tf.sharding.cut import COUNTED, cut_axis, matched

Pairs = list[tuple[Any, list[Any]]]  # a whole variable, and what it was cut into
_WHOLE_MATRICES = ("Adafactor", "Lamb", "Muon")


def join_slices(model: Any, names: Mapping[str, int], device: str) -> Any:
    """A copy of a plain model with whole layers in the place of slices.

    Values, compilation and the optimizer's state are the model's own, put together.

    Args:
        model: a model without a placement.
        names: the name of each layer that was cut, and into how many.
        device: where the values are born.
    """
    layers = {layer.name: layer for layer in model.layers}
    slices = {n: [layers[f"{n}_slice{i}"] for i in range(k)] for n, k in names.items()}
    with keras_api.random_states_kept():
        wholes = {n: _whole(n, found, layers) for n, found in slices.items()}
        stand_in: dict[int, Any] = {}
        for name, found in slices.items():
            gone = [*found[1:], layers[f"{name}_join"], layers.get(f"{name}_act")]
            stand_in |= {id(layer): _first_of for layer in gone if layer is not None}
            stand_in[id(found[0])] = wholes[name]
        cloner = Cloner(lambda layer: device)

        def call(operation: Any, args: Any, kwargs: Any) -> Any:
            if id(operation) in stand_in:
                with tf.device(device):
                    return stand_in[id(operation)](*args, **kwargs)
            return cloner.call(operation, args, kwargs)

        structure = model.input
        inputs = keras.tree.map_structure(input_like, structure)
        outputs, _ = cloner.replay(model, inputs, call)
        made = functional(model, inputs, outputs)
    pairs = [(its, [mine]) for mine, its in cloner.pairs()]
    for name, found in slices.items():
        pairs += _cut_pairs(wholes[name], found)
    _put_together(pairs)
    cloner.carry_assets()
    if model.compiled:
        made.compile(**keras_api.compile_arguments(model))
        if model.optimizer is not None and model.optimizer.built:
            made.optimizer.build(made.trainable_variables)
            _put_together(_slot_pairs(made, model, pairs))
    return made


def _whole(name: str, slices: list[Any], layers: Mapping[str, Any]) -> Any:
    """The whole layer that slices came from, not yet built."""
    first = slices[0]
    kind = next(cls for cls in type(first).__mro__ if cls.__name__ in COUNTED)
    configs = [one.get_config() for one in slices]
    config = configs[0]
    for key in COUNTED[kind.__name__]:
        sizes = [one[key] for one in configs]
        if isinstance(sizes[0], list | tuple):
            axis = layers[f"{name}_join"].axis
            config[key] = list(sizes[0])
            config[key][axis] = sum(size[axis] for size in sizes)
        else:
            config[key] = sum(sizes)
    activation = layers.get(f"{name}_act")
    if activation is not None:
        config["activation"] = activation.get_config()["activation"]
    config["name"] = name
    for key in ("build_config", "slice_number", "slice_count"):
        config.pop(key, None)
    whole = kind.from_config(config)
    whole.trainable = first.trainable
    return whole


def _first_of(*given: Any, **named: Any) -> Any:
    """What stands where other slices and their join were: it hands a tensor on."""
    flat = keras.tree.flatten((given, named))
    return next(one for one in flat if isinstance(one, keras.KerasTensor))


def _cut_pairs(whole: Any, slices: list[Any]) -> Pairs:
    """The variables of a whole layer with those of its slices, in their order.

    Seeds, and what only the first slice has, are its own.
    """
    parts: dict[int, list[Any]] = {id(v): [] for v in whole.variables}
    for one in slices:
        for mine, its in matched(whole, one):
            parts[id(mine)].append(its)
    return [
        (v, found if cut_axis(v, found[0]) is not None else found[:1])
        for v in whole.variables
        for found in [parts[id(v)]]
    ]


def _put_together(pairs: Pairs) -> None:
    """Give each whole variable the values of its slices, side by side."""
    for variable, parts in pairs:
        axis = cut_axis(variable, parts[0])
        values = [tf.convert_to_tensor(part.value) for part in parts]
        variable.assign(values[0] if len(parts) == 1 else tf.concat(values, axis))


def _slot_pairs(whole: Any, sliced: Any, pairs: Pairs) -> Pairs:
    """Each variable of the whole model's optimizer, and what it is in the sliced's."""
    parts = {id(variable): found for variable, found in pairs}
    theirs, mine = all_optimizers(sliced.optimizer), all_optimizers(whole.optimizer)
    found: Pairs = []
    for old, new in zip(theirs, mine, strict=True):
        of_part: dict[int, list[Any]] = {}
        for slot, variable in slots_of(old):
            of_part.setdefault(id(variable), []).append(slot)
        turns: Counter[int] = Counter()
        for slot, variable in slots_of(new):
            kind, turns[id(variable)] = turns[id(variable)], turns[id(variable)] + 1
            own = [of_part[id(part)][kind] for part in parts[id(variable)]]
            found.append((slot, own if slot.shape == variable.shape else own[:1]))
        slots = [{id(slot) for slot, _ in slots_of(one)} for one in (old, new)]
        rest = [
            [v for v in one.variables if id(v) not in known]
            for one, known in zip((old, new), slots)
        ]
        found += [(its, [own]) for own, its in zip(*rest, strict=True)]
    return found


def files_of_the_whole(
    model: Any, names: Mapping[str, int], whole_of: Callable[[Any], Any]
) -> None:
    """Let one model's `save`, `save_weights` and `load_weights` speak of whole layers.

    Args:
        model: an emitted model with slices.
        names: the name of each layer that was cut, and into how many.
        whole_of: makes the plain model with whole layers of it.
    """
    compile_plainly = model.compile

    @functools.wraps(model.load_weights)
    def load_weights(*args: Any, **kwargs: Any) -> None:
        whole = whole_of(model)
        whole.load_weights(*args, **kwargs)
        _scatter(whole, model, names)

    @functools.wraps(compile_plainly)
    def compile_warned(*args: Any, **kwargs: Any) -> None:
        compile_plainly(*args, **kwargs)
        for one in all_optimizers(model.optimizer):
            kind = type(one).__name__
            why = kind if kind in _WHOLE_MATRICES else "clipnorm"
            if kind in _WHOLE_MATRICES or one.clipnorm:
                warn(
                    f"{why} looks at each slice of {', '.join(names)} by itself, so "
                    "training is not that of the whole layer; use global_clipnorm, or "
                    "an optimizer that works number by number."
                )

    def by_the_whole(name: str) -> Any:
        @functools.wraps(getattr(model, name))
        def write(*args: Any, **kwargs: Any) -> Any:
            return getattr(whole_of(model), name)(*args, **kwargs)

        return write

    own = {name: by_the_whole(name) for name in ("save", "save_weights")}
    vars(model).update(own, compile=compile_warned, load_weights=load_weights)


def _scatter(whole: Any, sliced: Any, names: Mapping[str, int]) -> None:
    """Give slices, and all that is not cut, the values of a whole model."""
    theirs = {layer.name: layer for layer in sliced.layers}
    pairs: Pairs = []
    for layer in whole.layers:
        if layer.name in names:
            count = names[layer.name]
            slices = [theirs[f"{layer.name}_slice{i}"] for i in range(count)]
            pairs += _cut_pairs(layer, slices)
        elif layer.name in theirs:
            mine = zip(layer.variables, theirs[layer.name].variables, strict=True)
            pairs += [(one, [other]) for one, other in mine]
    if whole.optimizer is not None and whole.optimizer.built:
        sliced.optimizer.build(sliced.trainable_variables)
        pairs += _slot_pairs(whole, sliced, pairs)
    for variable, parts in pairs:
        axis, start = cut_axis(variable, parts[0]), 0
        for part in parts:
            rows: list[slice] = []
            if axis is not None:
                size = part.shape[axis]
                rows = [slice(None)] * axis + [slice(start, start + size)]
                start += size
            part.assign(variable.value[tuple(rows)] if rows else variable.value)
