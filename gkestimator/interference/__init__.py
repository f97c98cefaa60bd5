"""How much replicas that run on one GPU at once slow each other down."""
