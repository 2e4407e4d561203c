"""Data that ships with the app: the demo model."""
