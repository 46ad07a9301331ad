"""Threads are the process's: every test here begins with one."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
