"""The stages of CoHyDE, one module each, and the pipelines that are made of them."""
