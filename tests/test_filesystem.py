"""Folders that are whole or absent."""

import os

import pytest

from cohyde.errors import UserError
from cohyde.filesystem import REPLACEABLE, whole_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_only_when_it_is_complete(tmp_path):
    target = tmp_path / "deep" / "data"
    with whole_folder(target) as scratch:
        (scratch / "a").write_text("1")
        assert not target.exists() and scratch.parent == target.parent
    assert names(target) == ["a"] and names(target.parent) == ["data"]


def test_a_failure_leaves_nothing_behind(tmp_path):
    with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "data") as scratch:
        (scratch / "a").write_text("1")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_what_is_there_is_kept_unless_it_may_be_replaced(tmp_path):
    target = tmp_path / "data"
    target.mkdir()
    (target / "old").write_text("1")
    with pytest.raises(UserError, match="exists already"), whole_folder(target):
        pytest.fail("the body must not run")
    with pytest.raises(UserError, match="is no dataset"), whole_folder(target, overwrite=True):
        pytest.fail("the body must not run")
    (target / REPLACEABLE).write_text("name: old")
    with pytest.raises(ValueError, match="broken"), whole_folder(target, overwrite=True):
        raise ValueError("broken")
    assert names(target) == [REPLACEABLE, "old"]
    with whole_folder(target, overwrite=True) as scratch:
        (scratch / "new").write_text("2")
    assert names(target) == ["new"] and names(tmp_path) == ["data"]


def test_an_empty_folder_is_filled(tmp_path):
    with whole_folder(tmp_path / "data") as scratch:
        (scratch / "a").write_text("1")
    (tmp_path / "empty").mkdir()
    with whole_folder(tmp_path / "empty") as scratch:
        (scratch / "a").write_text("1")
    assert names(tmp_path / "empty") == ["a"]


def test_a_file_or_a_dangling_link_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(UserError, match=f"{name} exists already"), whole_folder(tmp_path / name):
            pytest.fail("the body must not run")


def test_a_place_that_cannot_be_written_to_is_named_with_the_option(tmp_path):
    (tmp_path / "file").write_text("1")
    with pytest.raises(UserError, match="--out DIR"), whole_folder(tmp_path / "file" / "data"):
        pytest.fail("the body must not run")
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(UserError, match="permission denied"), whole_folder(tmp_path / "data"):
            pytest.fail("the body must not run")
