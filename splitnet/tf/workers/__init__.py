"""Worker processes: started in private, joined over TensorFlow's runtime, watched."""
