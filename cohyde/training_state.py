"""What of a training in torch goes into a checkpoint: weights, optimizer and random state as tensors, notes as JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cohyde.io import write_json

WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
RANDOM = "random.safetensors"
NOTES = "notes.json"


def write_state(folder: Path, weights: Mapping[str, Any], optimizer: Any, notes: Mapping[str, Any]) -> None:
    """Write a state of training, random numbers included, into a folder that exists.

    Args:
        folder: to write into.
        weights: the trained tensors by name; no two of them share memory.
        optimizer: a torch optimizer whose state is tensors alone, such as AdamW's.
        notes: JSON data, whatever else belongs to the state. Its floats come back bit by bit.
    """
    write_tensors(folder / WEIGHTS, weights)
    state = optimizer.state_dict()["state"]
    write_tensors(folder / OPTIMIZER, {f"{n}.{name}": value for n, own in state.items() for name, value in own.items()})
    write_tensors(folder / RANDOM, _random_state())
    write_json(folder / NOTES, notes)


def read_state(folder: Path, optimizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give optimizer and random numbers the state that :func:`write_state` wrote; what it was given for the rest.

    The optimizer's settings, such as its learning rate, stay as they are.

    Returns:
        The weights, on the CPU, and the notes.
    """
    state: dict[int, dict[str, Any]] = {}
    for key, value in read_tensors(folder / OPTIMIZER).items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    _set_random_state(read_tensors(folder / RANDOM))
    return read_tensors(folder / WEIGHTS), json.loads((folder / NOTES).read_text(encoding="utf-8"))


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write tensors of any device as a safetensors file."""
    from safetensors.torch import save_file

    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


def read_tensors(path: Path) -> dict[str, Any]:
    """The tensors of a safetensors file, on the CPU, in memory that torch has allocated: aligned as all others are."""
    from safetensors.torch import load_file

    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def _random_state() -> dict[str, Any]:
    import torch

    cuda = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}
    return {"cpu": torch.get_rng_state(), **cuda}


def _set_random_state(state: Mapping[str, Any]) -> None:
    import torch

    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
