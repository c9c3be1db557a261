"""The bi-encoder: training, embedding, the exact index and what is searched with. Importing it imports no torch."""
