"""Where models come from: references to folders, packages, the hub and the tiny built-in models."""
