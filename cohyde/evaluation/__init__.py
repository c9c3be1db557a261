"""Metrics and what is made of them. Importing it imports no torch."""
