"""Working a plan off: chunks, resumption, repetition of noisy entries, several GPUs, Ray."""
