"""The command line in this process: what it prints, and how it leaves."""

import sys
from collections.abc import Callable

import pytest

from cohyde import cli

Call = Callable[..., tuple[int, str, str]]
"""Arguments to exit status, standard output and standard error."""


def caller(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """A function that runs ``cohyde`` with the arguments it gets, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cohyde", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capfd.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return call
