"""Run the event loop."""
