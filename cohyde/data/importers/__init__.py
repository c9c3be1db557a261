"""Public formats, one module each: files in, rows of ours out. What is wrong with a row is the validation's to say."""
