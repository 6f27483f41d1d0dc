"""What runs a model on a deployment machine: numpy and ONNX Runtime, no torch."""
