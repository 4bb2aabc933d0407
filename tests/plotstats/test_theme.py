"""All words can be read on their ground."""

import pytest
from curves import curves_of, make_run

from lmplay.plotstats.plot import draw_curve
from lmplay.plotstats.theme import THEMES


def contrast(one, other):
    """The contrast ratio of two colours by WCAG 2.2."""
    from matplotlib.colors import to_rgb

    def light(color):
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", THEMES)
def test_all_words_can_be_read_on_their_ground(tmp_path, name):
    from matplotlib.text import Text

    make_run(tmp_path, floor=1.02, resumes=(1000,))
    figure = draw_curve(curves_of(tmp_path)[0], None, ["samples", "tokens"], None, THEMES[name])
    figure.draw_without_rendering()
    grounds = [figure.get_facecolor(), THEMES[name].shade]
    words = [text for text in figure.findobj(Text) if text.get_text()]
    assert len(words) > 20
    assert all(contrast(text.get_color(), ground) >= 4.5 for text in words for ground in grounds)
    lines = [line.get_color() for axes in figure.axes for line in axes.lines]
    assert all(contrast(color, figure.get_facecolor()) >= 2 for color in (*lines, *THEMES[name].curves))
