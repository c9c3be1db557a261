"""The rewriter: prompts, cleaning, generation, fine-tuning, preference alignment."""
