"""Datasets on disk: reading, validation, subsets and splits."""
