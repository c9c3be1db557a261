"""Stage specifications, fingerprints, the artifact store and the runner. Knows nothing of what the stages do."""
