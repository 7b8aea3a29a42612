"""Where gradients from several devices are summed, and in which order.

Tapes sum the gradients of a tensor in the order in which they reach it. The sum belongs
where the tensor was made, which is known once its reader is there.
"""

from typing import Any

import tensorflow as tf

from splitnet.tf.marks import DeviceFunction, canonical, key_in, where

__all__ = ["settle_sums"]


def settle_sums(decided: DeviceFunction, graph: Any) -> None:
    """Move each sum over devices to where what it is the gradient of was made.

    A sign says where that is, or else the only part whose backward pass reads it. Signs
    themselves are passed by: nothing crosses to reach one. O(sums and their readers).
    """
    sums = {op: None for op in decided.sums if op.graph is graph}
    signed: dict[Any, None] = {}
    handed: dict[tuple[Any, int], str] = {}
    for sign in decided.signs:
        if sign.graph is graph:
            [given] = sign.inputs
            if given.op in sums and given.op not in signed:
                given.op._set_device(sign.device)
                signed[given.op] = None
            places = _read_instead(sign.outputs[0], given)
            handed |= dict.fromkeys(places, canonical(sign.device))
    for op in sums:
        if op not in signed:
            _move_to_reader(op, decided)
        _sum_in_order(op, handed)
    decided.sums.clear()
    decided.signs.clear()


def _move_to_reader(op: Any, decided: DeviceFunction) -> None:
    readers = {key_in(reader.name) for reader in op.outputs[0].consumers()}
    readers.discard(None)  # another sum, which this one is a term of
    if len(readers) == 1:
        key = readers.pop()
        if key in decided.target_of:
            op._set_device(decided.target_of[key])


def _sum_in_order(op: Any, handed: dict[tuple[Any, int], str]) -> None:
    """Sum term by term, the first ones where their readers are, if on one device.

    These cross as one. What an addition handed on is its own, wherever it is.
    TensorFlow's sum of three or more begins with the first whose memory nobody else
    holds, and a term that has just arrived is still held where it came from.

        ((a + b) + c) + d        a, b on gpu:1, the sum on gpu:0
    """
    terms, home = list(op.inputs), canonical(op.device)
    if op.type != "AddN":
        return
    senders = [handed.get((op, i)) or where(term) for i, term in enumerate(terms)]
    twice = [sum(one is other for other in terms) > 1 for one in terms]
    lead = twice.index(False) if False in twice else 0
    for these in (terms, senders):  # as TensorFlow: memory of one reader comes first
        these[0], these[lead] = these[lead], these[0]
    first = senders[0]
    alike = [sender == first for sender in senders]
    count = alike.index(False) if False in alike else len(alike)
    if count < 2 or not first:
        count = 0
    if len(terms) == 2:
        op._set_device(first if count == 2 else home)
        return
    total = terms[0]
    with op.graph.as_default(), tf.name_scope(""):
        for number, term in enumerate(terms[1:], 1):
            with tf.device(first if number < count else home):
                total = tf.raw_ops.AddN(inputs=[total, term])
    _read_instead(op.outputs[0], total)


def _read_instead(old: Any, new: Any) -> list[tuple[Any, int]]:
    """Let all that read a tensor read another; which inputs of which ops those were."""
    places = [
        (reader, number)
        for reader in old.consumers()
        for number, one in enumerate(reader.inputs)
        if one is old
    ]
    for reader, number in places:
        reader._update_input(number, new)
    return places
