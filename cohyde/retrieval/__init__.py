"""Live retrieval: requests in, ranked tools out, with a catalogue that may change while it is searched."""
