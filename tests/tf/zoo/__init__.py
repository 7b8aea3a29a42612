"""Cases with data, one for each thing that placement could break.

Sizes are small: what is proven is where and how things run, never how fast.
"""

from tests.tf.zoo import ways
from tests.tf.zoo.models import MODELS
from tests.tf.zoo.nets import NETS, two_branches

__all__ = ["MODELS", "NETS", "ZOO", "two_branches"]

ZOO = NETS | ways.WAYS | MODELS
"""All of them by name; each is made anew by a call."""
