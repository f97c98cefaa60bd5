"""From raw captures to a kernel dataset, its lowering table, checks and report."""
