"""Send commands of gkest files that a stranger might send, in processes that are watched."""
