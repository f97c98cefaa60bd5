"""Say when requests come: arrival processes, in chunks."""
