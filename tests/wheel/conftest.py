from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The wheel's tests first: they wait for pip, and a second process gets on with the others meanwhile."""
    items.sort(key=lambda item: item.get_closest_marker("wheel") is None)
