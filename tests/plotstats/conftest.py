"""Pictures that need not be painted."""
import pytest


@pytest.fixture
def unpainted(monkeypatch):
    """Leave the painting of pictures out, where only which ones there are matters; gives what would have been painted: panels and title."""
    painted = []
    monkeypatch.setattr("lmplay.plotstats.plot.make_figure", lambda panels, columns, title, theme: painted.append((panels, title)))
    monkeypatch.setattr("lmplay.plotstats.plot.save", lambda figure, path: path.touch())
    return painted
