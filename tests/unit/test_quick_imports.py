"""Imports run without garbage collections, which would take time."""

import gc

import pytest

from fedraa.quick_imports import quick_imports


def test_quick_imports_search_for_no_garbage_and_later_searches_skip_the_imported_objects() -> None:
    before = gc.get_freeze_count()
    with quick_imports():
        assert not gc.isenabled()
        imported = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(imported)


def test_quick_imports_search_again_after_an_import_that_fails() -> None:
    with pytest.raises(ModuleNotFoundError), quick_imports():
        import fedraa.no_such_module  # noqa: F401
    assert gc.isenabled()
