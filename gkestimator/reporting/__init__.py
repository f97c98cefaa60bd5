"""Give texts, pictures and pages one style."""
