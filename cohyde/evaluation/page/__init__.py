"""One self-contained page of results, and its tables in other formats; knows no stage, only what it is given."""
