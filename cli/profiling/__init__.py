"""Hold the subcommands of ``gkest profile``, one file each."""
