"""The edge to Keras and TensorFlow: read, emit, measure, observe."""
