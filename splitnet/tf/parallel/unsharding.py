"""Sliced models made whole: one layer in the place of its slices, and its files.

A model with split layers is saved as the whole model, so its files fit any machine; a
file of the whole model is loaded into the slices.
"""

import functools
from collections.abc import Callable, Collection
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import warn
from splitnet.tf.internals import keras_api
from splitnet.tf.placement.optimizer import all_optimizers, slots_of
from splitnet.tf.reading.cloner import Cloner, functional, input_like
from splitnet.tf.reading.slices import cut_axis, matched
from splitnet.tf.reading.variables import variables_of

Pairs = list[tuple[Any, list[Any]]]  # a whole variable, and what it was cut into
_WHOLE_MATRICES = ("Adafactor", "Lamb", "Muon")


def join_slices(model: Any, names: Collection[str], device: str) -> Any:
    """A copy of a plain model with whole layers in the place of slices, on a device.

    `names` are the layers that were cut. Values, compilation and the optimizer's state
    are the model's own, put together.
    """
    layers = {layer.name: layer for layer in model.layers}
    stand_in: dict[int, Any] = {}
    with keras_api.random_states_kept(), tf.device(device):
        for name in names:
            first, *others = _slices(layers, name)
            whole = layers[f"{name}_join"].whole_layer()
            whole.trainable = first.trainable
            gone = [*others, layers[f"{name}_join"]]
            stand_in |= {id(first): whole} | {id(one): _first_of for one in gone}
        cloner = Cloner(lambda layer: device)

        def call(operation: Any, args: Any, kwargs: Any) -> Any:
            if id(operation) in stand_in:
                return stand_in[id(operation)](*args, **kwargs)
            return cloner.call(operation, args, kwargs)

        inputs = keras.tree.map_structure(input_like, model.input)
        outputs, _ = cloner.replay(model, inputs, call)
        made = functional(model, inputs, outputs)
    pairs = _pairs(made, model, names)
    _gather(pairs)
    cloner.finish()
    if model.compiled:
        made.compile(**keras_api.compile_arguments(model))
        if model.optimizer is not None and model.optimizer.built:
            made.optimizer.build(made.trainable_variables)
            _gather(_slot_pairs(made, model, pairs))
    return made


def files_of_the_whole(
    model: Any, names: Collection[str], whole_of: Callable[[Any], Any]
) -> None:
    """Let `save`, `save_weights` and `load_weights` of a model speak of whole layers.

    `names` are the layers that were cut; `whole_of` makes the plain model of this one.
    """
    compile_plainly = model.compile

    @functools.wraps(model.load_weights)
    def load_weights(*args: Any, **kwargs: Any) -> None:
        whole = whole_of(model)
        whole.load_weights(*args, **kwargs)
        pairs = _pairs(whole, model, names)
        _scatter(pairs)
        if whole.optimizer is not None and whole.optimizer.built:
            model.optimizer.build(model.trainable_variables)
            _scatter(_slot_pairs(whole, model, pairs))

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


def _first_of(*given: Any, **named: Any) -> Any:
    """What stands where other slices and their join were: it hands a tensor on."""
    flat = keras.tree.flatten((given, named))
    return next(one for one in flat if isinstance(one, keras.KerasTensor))


def _slices(layers: dict[str, Any], name: str) -> list[Any]:
    found = (layers.get(f"{name}_slice{number}") for number in range(len(layers)))
    return [one for one in found if one is not None]


def _pairs(whole: Any, sliced: Any, names: Collection[str]) -> Pairs:
    """The variables of a whole model with those of its sliced one.

    Seeds of slices, and what only the first slice has, are its own.
    """
    layers = {layer.name: layer for layer in sliced.layers}
    found: Pairs = []
    for layer in whole.layers:
        if layer.name not in names:
            its = variables_of(layers[layer.name])
            found += [(a, [b]) for a, b in zip(variables_of(layer), its, strict=True)]
            continue
        parts: dict[int, list[Any]] = {id(v): [] for v in layer.variables}
        for one in _slices(layers, layer.name):
            for mine, its in matched(layer, one):
                parts[id(mine)].append(its)
        for v in layer.variables:
            each = parts[id(v)]
            found.append((v, each if cut_axis(v, each[0]) is not None else each[:1]))
    return found


def _slot_pairs(whole: Any, sliced: Any, pairs: Pairs) -> Pairs:
    """Each variable of the whole model's optimizer, and what it is in the sliced's."""
    found: Pairs = []
    both = (all_optimizers(one.optimizer) for one in (whole, sliced))
    for optimizers in zip(*both, strict=True):
        mine, theirs = dict[int, list[Any]](), dict[int, list[Any]]()
        for slots, one in zip((mine, theirs), optimizers):
            for slot, variable in slots_of(one):  # a slot of each kind, in their order
                slots.setdefault(id(variable), []).append(slot)
        for variable, parts in pairs:
            for kind, slot in enumerate(mine.get(id(variable), ())):
                own = [theirs[id(part)][kind] for part in parts]
                found.append((slot, own if slot.shape == variable.shape else own[:1]))
        known = {id(s) for each in (*mine.values(), *theirs.values()) for s in each}
        rest = ([v for v in one.variables if id(v) not in known] for one in optimizers)
        found += [(its, [own]) for its, own in zip(*rest, strict=True)]
    return found


def _gather(pairs: Pairs) -> None:
    """Give each whole variable the values of its slices, side by side."""
    for variable, parts in pairs:
        axis = cut_axis(variable, parts[0])
        values = [tf.convert_to_tensor(part.value) for part in parts]
        variable.assign(values[0] if len(parts) == 1 else tf.concat(values, axis))


def _scatter(pairs: Pairs) -> None:
    """Give slices their share of the values of each whole variable."""
    for variable, parts in pairs:
        axis, values = cut_axis(variable, parts[0]), [variable.value]
        if axis is not None:
            values = tf.split(variable.value, [p.shape[axis] for p in parts], axis)
        for part, value in zip(parts, values):
            part.assign(value)
