"""Formulas of attention: projections by weights, scores by tensors."""

import math
from dataclasses import replace

from splitnet.tf.costs.value import Case, Size, Work, weight_sizes

__all__ = ["additive", "grouped_query", "multi_head", "plain", "scores"]


def scores(
    pairs: int, key_dim: int, value_dim: int, item_bytes: int, rate: float = 0.0
) -> Work:
    """Scaled dot-product attention, Vaswani et al. 2017, equation 1.

    `pairs` is batch * heads * queries * keys. Scores cost 2 * pairs * key_dim, their
    use 2 * pairs * value_dim, scaling and softmax 8 each. Kept: the softmax, and with
    dropout its dropped copy and the mask.
    """
    copies = (2 * item_bytes + 1) if rate else item_bytes
    return Work(
        product_flops=2.0 * pairs * (key_dim + value_dim),
        other_flops=(14.0 if rate else 8.0) * pairs,
        inner_bytes=pairs * copies,
        transient_bytes=2 * pairs * item_bytes,
    )


def multi_head(case: Case) -> Work:
    """Query, key, value and output projections around `scores`.

    Kept besides: the projected query, key and value and the weighted sum, which the
    output projection reads again.
    """
    layer = case.operation
    heads = layer.num_heads
    return _projected(case, heads, heads, layer.key_dim, layer.value_dim)


def grouped_query(case: Case) -> Work:
    """As `multi_head`, with fewer heads of keys and values (Ainslie et al. 2023)."""
    layer = case.operation
    heads, shared = layer.num_query_heads, layer.num_key_value_heads
    return _projected(case, heads, shared, layer.head_dim, layer.head_dim)


def _projected(
    case: Case, heads: int, shared: int, key_dim: int, value_dim: int
) -> Work:
    query, value, key = _three(case)
    layer = case.operation
    places = [math.prod(s.shape[1:-1]) for s in (query, key)]
    batch = query.shape[0]
    queries, keys = batch * places[0], batch * places[1]
    pairs = batch * heads * _pairs_per_head(layer, query, key)
    inside = scores(pairs, key_dim, value_dim, case.output.item_bytes, _rate(layer))
    width = case.output.shape[-1]
    gate = heads * value_dim if getattr(layer, "_use_gate", False) else 0
    matrix = 2.0 * (
        queries * query.shape[-1] * (heads * key_dim + gate)
        + keys * shared * (key.shape[-1] * key_dim + value.shape[-1] * value_dim)
        + queries * heads * value_dim * width
    )
    kept = queries * heads * (key_dim + value_dim) + 2 * queries * gate
    kept += keys * heads * (key_dim + value_dim)
    biased = queries * (heads * key_dim + width) + keys * shared * 2 * key_dim
    trainable = bool(weight_sizes(layer, trainable_only=True))
    return Work(
        matrix_flops=matrix,
        product_flops=inside.product_flops,
        other_flops=inside.other_flops + biased,
        saves_inputs=tuple(range(min(len(case.inputs), 3))) if trainable else (),
        inner_bytes=inside.inner_bytes + kept * case.output.item_bytes,
        transient_bytes=inside.transient_bytes,
    )


def _three(case: Case) -> tuple[Size, Size, Size]:
    """Query, value and key; masks among the inputs are not among them."""
    given = [s for s in case.inputs if len(s.shape) >= 3 and s.differentiable]
    query = given[0] if given else case.input
    value = given[1] if len(given) > 1 else query
    key = given[2] if len(given) > 2 else value
    return query, value, key


def _pairs_per_head(layer: object, query: Size, key: Size) -> int:
    """Queries times keys, over the attended axes; the other axes are batch."""
    axes = getattr(layer, "attention_axes", None) or range(1, len(query.shape) - 1)
    attended = {axis % len(query.shape) for axis in axes}
    extents = [
        (q * k if axis in attended else q)
        for axis, (q, k) in enumerate(zip(query.shape[:-1], key.shape[:-1]))
    ]
    return math.prod(extents[1:])


def _rate(layer: object) -> float:
    rate = getattr(layer, "dropout", 0.0)
    return float(rate) if isinstance(rate, int | float) else 0.0


def plain(case: Case) -> Work:
    """`layers.Attention`: `scores` without projections, one head (Luong et al. 2015).

    Kept besides: the transposed key, and the raw scores if they have a scale to train.
    """
    layer = case.operation
    query, value, key = _three(case)
    item = case.output.item_bytes
    pairs = query.shape[0] * query.shape[-2] * key.shape[-2]
    inside = scores(pairs, query.shape[-1], value.shape[-1], item, _rate(layer))
    scaled = pairs * item if getattr(layer, "use_scale", False) else 0
    return replace(
        inside,
        saves_inputs=tuple(range(min(len(case.inputs), 2))),
        inner_bytes=inside.inner_bytes + key.bytes + scaled,
    )


def additive(case: Case) -> Work:
    """tanh(query + key) for every pair, summed over features (Bahdanau 2015).

    The tanh of shape (batch, queries, keys, features) is kept, and scaled once more.
    """
    query, value, key = _three(case)
    pairs = query.shape[0] * query.shape[-2] * key.shape[-2]
    features = query.shape[-1]
    item = case.output.item_bytes
    rate = _rate(case.operation)
    copies = (2 * item + 1) if rate else item
    return Work(
        product_flops=2.0 * pairs * value.shape[-1],
        other_flops=pairs * (7.0 * features + 8.0),
        saves_inputs=(1,) if len(case.inputs) > 1 else (0,),
        inner_bytes=pairs * (features * item + copies),
        transient_bytes=pairs * features * item,
    )
