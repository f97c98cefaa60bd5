"""Hold the operators of ONNX Runtime's own domain, `com.microsoft`."""
