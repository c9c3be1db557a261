"""Where prompts, configurations and the sample lie: beside the package in a checkout, inside it in a wheel."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def resource_folder(name: str) -> Path:
    """The folder ``prompts`` or ``configs``.

    A wheel carries them inside the package (``cohyde/prompts``); a checkout has them next to it. The package's own
    copy comes first, so that an installed version never reads a stray folder of its surroundings.
    """
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def sample_folder() -> Path:
    """The embedded sample dataset."""
    return PACKAGE / "data" / "sample"
