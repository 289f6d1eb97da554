"""What holds for every test: hypothesis draws few examples and never fails a test for being slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("quick", deadline=None, max_examples=40)
settings.load_profile("quick")
