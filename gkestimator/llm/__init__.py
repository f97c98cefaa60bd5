"""Language models: from a configuration or a decoder's ONNX file to tokens a second, memory, and how many GPUs."""
