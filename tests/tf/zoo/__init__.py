"""Cases with data, one for each thing that placement could break, made by a call."""

from tests.tf.zoo import ways
from tests.tf.zoo.models import MODELS
from tests.tf.zoo.nets import NETS, two_branches

__all__ = ["MODELS", "NETS", "ZOO", "two_branches"]

ZOO = NETS | ways.WAYS | MODELS
