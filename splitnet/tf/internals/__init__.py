"""Every private name of Keras and TensorFlow that splitnet uses, checked at import.

No other module reads a private attribute of a Keras or TensorFlow object or imports
`keras.src` or `tensorflow.python`; `tests/tf/internals` holds that.
"""
