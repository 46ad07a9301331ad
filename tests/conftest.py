"""Fixtures that every test folder may use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:  # tests import their shared helpers as `tests.models`
    sys.path.insert(0, ROOT)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real model's file inside its installed package; a missing package is an error, never a skip."""
    from inferswarm.strategies.catalog import resolve_model

    return resolve_model("smollm2-135m")
