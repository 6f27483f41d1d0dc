"""A trained model becomes files, each proved to be that model. Needs torch and onnx."""
