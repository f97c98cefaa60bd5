"""Hold ``gkest serve``, whose options need a file of their own."""
