"""Say what stands in each kind of document: JSON Schemas derived from the readers, and commented templates."""
