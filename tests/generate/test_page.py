"""The page of `lmp_generator --serve`, in a browser."""
import shutil

import pytest

pytest.importorskip("uvicorn")
from browser import browser, needs_browser
from served import served

pytestmark = needs_browser
ANSWERS = "[...document.querySelectorAll('.answer')].map(one => one.querySelector('.text').innerText)"
DONE = "document.querySelectorAll('.answer').length && !document.querySelector('.busy')"


@pytest.fixture(scope="module")
def two(trained, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "other.lmp"
    shutil.copy(trained / "gpt2ish_model.lmp", other)
    return ["--model", trained / "gpt2ish_model.lmp", "--model", other, "--greedy", "--max-tokens", 16, "--device", "cpu"]


@pytest.mark.slow
def test_the_page_talks_with_two_models_side_by_side(two, tmp_path):
    with served(*two) as server, browser() as window:
        for width, dark in ((1400, False), (1400, True), (420, False), (420, True)):
            window.look(width, dark)
            window.open(server.url)
            window.until("document.getElementById('two').value === 'other'")
            assert window.run("return document.documentElement.dataset.theme") == ("dark" if dark else "light")
            window.type("#typed", "Who?\n")
            window.until(f"{DONE} && {ANSWERS}.length === 2")
            assert window.run(f"return {ANSWERS}") == ["A cat.", "A cat."]
            window.type("#typed", "Where?\n")
            window.until(f"{DONE} && {ANSWERS}.length === 4")
            assert window.run(f"return {ANSWERS}")[2:] == ["Here.", "Here."]
            assert window.run("return document.documentElement.scrollWidth <= innerWidth")
            lefts = window.run("return [...document.querySelectorAll('.answer')].slice(2).map(one => one.getBoundingClientRect().left)")
            assert (lefts[0] < lefts[1]) == (width > 700)
            window.picture(tmp_path / f"chat_{width}_{'dark' if dark else 'light'}.png")
        window.run("document.getElementById('mode').value = 'text'; document.getElementById('two').value = ''")
        window.type("#typed", "user: <b>Who?\n")
        window.until(f"{DONE} && {ANSWERS}.length === 5")
        assert window.run(f"return {ANSWERS}[4]").startswith("user: <b>Who?")
        window.type("#typed", "x" * 200 + "\n")
        window.until("document.querySelector('.wrong')")
        assert "context is 128 tokens" in window.run("return document.querySelector('.wrong').innerText")
        assert all("400" in complaint for complaint in window.complaints())
        window.run("document.getElementById('clear').click()")
        assert window.run(f"return {ANSWERS}") == []


@pytest.mark.slow
def test_the_page_takes_a_token_and_forgets_what_does_not_fit(two):
    with served(*two, "--token", "secret") as server, browser() as window:
        window.open(server.url)
        window.until("!document.getElementById('token-label').hidden")
        assert "token is missing" in window.run("return document.getElementById('hint').innerText")
        window.open("about:blank")
        window.open(f"{server.url}/#token=secret")
        window.until("document.getElementById('two').value === 'other'")
        assert window.run("return location.href") == f"{server.url}/"
        for number in range(7):
            window.type("#typed", "Who? Where?\n")
            window.until(f"{DONE} && {ANSWERS}.length === {2 * number + 2}")
        assert window.run("return document.body.innerText.includes('no longer fits')")
        assert not window.run("return document.querySelector('.wrong')")
