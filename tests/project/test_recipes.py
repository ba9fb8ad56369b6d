"""Recipes stay short enough to read in one go."""

from __future__ import annotations

from pathlib import Path

import pytest
from project import ROOT

MAX_LINES = 130


@pytest.mark.parametrize("recipe", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_recipe_is_short(recipe: Path) -> None:
    assert len(recipe.read_text().splitlines()) <= MAX_LINES
