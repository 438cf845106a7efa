"""Serving: the patched model as torch.export and ONNX files, checked against the model."""
