"""Public formats to write, one module each: what one of ours holds and the format has no place for goes beside."""
