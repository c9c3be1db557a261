"""``python -m cohyde`` is the same as ``cohyde``."""

from cohyde.cli import main

if __name__ == "__main__":
    main()
