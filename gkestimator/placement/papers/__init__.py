"""Hold published policies, each as its paper says."""
