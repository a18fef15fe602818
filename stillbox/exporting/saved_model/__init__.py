"""SavedModel: resizing in operations of TensorFlow, the detector as one XLA program."""
