"""Deployed federations in tests."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files need not survive a power failure here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
