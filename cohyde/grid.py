"""The grid of a sweep: from seeds and ``key=v1,v2`` to one named set of overrides a run."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohyde.config import parse_override
from cohyde.errors import UserError
from cohyde.io import sha256_text

SEED_KEY = "seeds.loop"
OPENING, CLOSING, QUOTES = "[{(", "]})", "\"'"
LONGEST_LABEL = 24
LONGEST_NAME = 100
"""Characters of a run's name, as :func:`cohyde.dag.runs.check_name` has it."""
LARGEST = 10_000
"""Runs of one sweep: more are a slip of the keyboard."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a sweep."""

    name: str
    seed: int
    settings: Mapping[str, str]
    """Of the settings with several values: the one of this run, as it was written."""
    overrides: tuple[str, ...]
    """Everything that departs from the preset, the seed included."""


def grid(name: str, seeds: Sequence[int], overrides: Sequence[str]) -> list[Point]:
    """Every combination of seeds and of the settings that have several values; the seed varies fastest.

    Args:
        name: of the sweep; the runs' names begin with it.
        seeds: of the loop.
        overrides: ``key=value``, or ``key=v1,v2`` where a setting is swept.

    Raises:
        UserError: a setting or value is given twice, a value is empty, a name becomes too long, or there are too many.
    """
    choices = dict(_settings(overrides))
    swept = {key: values for key, values in choices.items() if len(values) > 1}
    count = len(seeds)
    for values in swept.values():
        count *= len(values)
    if count > LARGEST:
        raise UserError(f"that is a sweep of {count:,} runs", f"give at most {LARGEST:,} combinations of values")
    words = dict(zip(swept, _short_keys(list(swept)), strict=True))
    labels = {key: dict(zip(values, _labels(key, values), strict=True)) for key, values in swept.items()}
    common = [f"{key}={values[0]}" for key, values in choices.items() if key not in swept]
    points = []
    for chosen in itertools.product(*swept.values()):
        settings = dict(zip(swept, chosen, strict=True))
        parts = [f"{words[key]}{labels[key][value]}" for key, value in settings.items()]
        varied = [f"{key}={value}" for key, value in settings.items()]
        for seed in seeds:
            points.append(
                Point(
                    name=_checked("-".join([name, *parts, f"s{seed}"])),
                    seed=seed,
                    settings=settings,
                    overrides=(*common, *varied, f"{SEED_KEY}={seed}"),
                )
            )
    return points


def first_of(overrides: Sequence[str]) -> list[str]:
    """Every setting with its first value; raises as :func:`grid`."""
    return [f"{key}={values[0]}" for key, values in _settings(overrides)]


def parse_seeds(text: str) -> list[int]:
    """``0,123,7`` as numbers.

    Raises:
        UserError: one is no whole number from 0 on, or is given twice.
    """
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdigit())]
    if wrong:
        raise UserError(f"--seeds {text}: {wrong[0]!r} is no seed", "write whole numbers from 0 on, such as 0,123,7")
    seeds = [int(part) for part in parts]
    _check_once(f"--seeds {text}", seeds)
    return seeds


def split_values(text: str) -> list[str]:
    """Cut at the commas outside brackets and quotes: ``[1,2],[3]`` is two values. Unmatched, it is one."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in QUOTES and not parts[-1].strip():
            quote = sign
        else:
            depth += (sign in OPENING) - (sign in CLOSING)
        if sign == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts] if not depth and not quote else [text]


def _settings(overrides: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Keys with their values."""
    pairs = [override.partition("=") for override in overrides]
    keys = [key.strip() for key, _, _ in pairs]
    for override, key, (_, equals, text) in zip(overrides, keys, pairs, strict=True):
        if not equals or not key:
            raise UserError(f"{override!r} is no setting", "write key=value, or key=v1,v2 to sweep over several")
        if key == SEED_KEY:
            raise UserError(f"{override!r}: a sweep's seeds are an option of their own", f"write --seeds {text}")
        if keys.count(key) > 1:
            raise UserError(f"{key} is given twice", f"write {key}=v1,v2 to sweep over several values")
        values = split_values(text)
        if len(values) > 1 and not all(values):
            raise UserError(f"{override!r}: a value is empty", "write key=v1,v2, without a comma at either end")
        _check_once(override, values)
        yield key, values


def _check_once(where: str, values: Sequence[Any]) -> None:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise UserError(f"{where}: {twice[0]} is given twice", "give each value once")


def _short_keys(keys: Sequence[str]) -> list[str]:
    """The last words of each key: as many as tell all keys apart."""
    split = [key.split(".") for key in keys]
    count = 1
    while len({tuple(words[-count:]) for words in split}) < len(keys):
        count += 1
    return [".".join(words[-count:]) for words in split]


def _labels(key: str, values: Sequence[str]) -> list[str]:
    """Each value as part of a name: as the configuration reads it, so that ``1e-5`` is ``1e-05``."""
    found = [_label(key, value) for value in values]
    if len(set(found)) == len(found) and all(found):
        return found
    return [f"{label}-{sha256_text(value)[:6]}" for label, value in zip(found, values, strict=True)]


def _label(key: str, text: str) -> str:
    value: Any = parse_override(f"{key}={text}")
    for word in key.split("."):
        value = value[word]
    if isinstance(value, list):
        words = "-".join(map(str, value))
    elif isinstance(value, bool) or value is None:
        words = str(value).lower()
    else:
        words = str(value)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", words)[-LONGEST_LABEL:].strip("-.")


def _checked(name: str) -> str:
    if len(name) > LONGEST_NAME:
        raise UserError(
            f"a run would be called {name}: {len(name)} characters, {LONGEST_NAME} at most",
            "give a shorter --name, or sweep over fewer settings at once",
        )
    return name
