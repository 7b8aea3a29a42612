"""TensorFlow's server alone: a worker runs none of TensorFlow's other Python.

`import tensorflow` takes five times as long, and 160 MB more. So the package is entered
without its `__init__`. This file is run by its path: the package here imports Keras.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any


def server_api() -> tuple[Any, Any, str]:
    """The class of the server, that of its options, and TensorFlow's version.

    Only for programs that do nothing else: `import tensorflow` finds an empty module
    afterwards, except where there are plug-in devices, which its `__init__` loads.
    """
    plugins = any(Path(path, "tensorflow-plugins").exists() for path in sys.path)
    if plugins or "TF_PLUGGABLE_DEVICE_LIBRARY_PATH" in os.environ:
        # TensorFlow goes without Keras then: a quarter of its start.
        sys.modules.setdefault("keras", None)  # type: ignore[arg-type]  # means: none
        importlib.import_module("tensorflow")
    elif "tensorflow" not in sys.modules:
        package = importlib.util.find_spec("tensorflow")
        assert package
        sys.modules["tensorflow"] = importlib.util.module_from_spec(package)
    from tensorflow.core.protobuf.config_pb2 import ConfigProto
    from tensorflow.python.framework.versions import VERSION
    from tensorflow.python.training.server_lib import Server

    return Server, ConfigProto, VERSION
