"""Read a model file into a plain program, without its weights."""
