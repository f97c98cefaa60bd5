"""Hold what is known of each operator: one record per ``(domain, op_type)`` with its rules and its traits."""
