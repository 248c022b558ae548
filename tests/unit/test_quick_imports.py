"""Imports run without garbage collections, which would take time."""

import gc

import pytest

from fedraa.quick_imports import quick_imports


def test_quick_imports_pause_garbage_collection_and_freeze_imported_objects() -> None:
    before = gc.get_freeze_count()
    with quick_imports():
        assert not gc.isenabled()
        imported = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(imported)


def test_garbage_collection_is_enabled_again_after_a_failed_import() -> None:
    with pytest.raises(ModuleNotFoundError), quick_imports():
        import fedraa.no_such_module  # noqa: F401
    assert gc.isenabled()
