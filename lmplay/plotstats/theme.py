"""The colours of pictures and report, on a light and a dark background.  Plotstats floor: nothing imported."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """Colours by their use.  `curves` are those of Okabe and Ito (2008), "Color universal design": distinct for all kinds of colour vision."""

    paper: str
    ink: str
    soft: str  # less important words, marks
    grid: str
    shade: str  # behind every second stage
    alarm: str  # skipped batches
    curves: tuple[str, ...]


THEMES = {
    "light": Theme("#ffffff", "#1d1f23", "#4d535c", "#d8d8d8", "#eeeeee", "#b00020",
                   ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")),
    # the same hues, without those that are too dark for the background
    "dark": Theme("#14161a", "#e7e9ee", "#a3abb8", "#33383f", "#1e2228", "#ff6b6b",
                  ("#56B4E9", "#E69F00", "#22B98B", "#CC79A7", "#F0E442", "#E8703A", "#F5F5F5")),
}
