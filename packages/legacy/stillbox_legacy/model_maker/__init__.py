"""The interfaces of TFLite Model Maker and MediaPipe Model Maker, on the networks of stillbox."""
