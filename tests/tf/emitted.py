"""Cases emitted, and where their variables are."""

from typing import Any

import splitnet as sn
from tests.tf.zoo import BATCH, Case


def emitted(case: Case, cluster: sn.Cluster, **plan: Any) -> Any:
    """The placed model of a case, not compiled."""
    plan = {"batch": BATCH, "time_limit": 0.1} | plan
    return sn.emit(case.net, sn.plan(case.net, cluster, **plan))


def devices(variables: Any) -> list[str]:
    """The short names of the devices that hold variables."""
    return [v.value.device.rpartition("device:")[2] for v in variables]
