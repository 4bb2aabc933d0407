"""`lmp_plotstats --serve`: a report that follows the runs."""
import json
import re
import signal
import socket
import subprocess
import sys

import pytest
import warm
from curves import make_run
from helpers import ENVIRONMENT

pytest.importorskip("plotly")
pytest.importorskip("uvicorn")
from browser import browser, needs_browser
from served import port_of, served

from lmplay.plotstats.__main__ import main


def live(folder, *arguments):
    return served("--out-dir", folder, *arguments, door=main)


def names(content):
    return [run["name"] for run in content["data"]["runs"]]


def test_the_content_follows_the_runs(tmp_path, capfd):
    with live(tmp_path / "later") as server:
        status, content = server.ask("/report.json")
        assert status == 200
        assert "no such folder" in content["faults"][0]
        (tmp_path / "later").mkdir()
        make_run(tmp_path / "later", "one", stop=1000)
        with server.send("/report.json") as answer:
            content, tag = json.loads(answer.read()), answer.headers["ETag"]
        assert (names(content), content["faults"]) == (["one"], [])
        assert [stage["done"] for stage in content["data"]["runs"][0]["stages"]] == [False]
        assert "<h2>Runs</h2>" in content["parts"]["runs"]
        with server.send("/report.json", headers={"If-None-Match": tag}) as answer:
            assert (answer.status, answer.read()) == (304, b"")
        make_run(tmp_path / "later", "one")
        make_run(tmp_path / "later", "two")
        (tmp_path / "later" / "three_train_stats.json").write_text("{")
        with server.send("/report.json", headers={"If-None-Match": tag}) as answer:
            assert answer.status == 200
            content = json.loads(answer.read())
        assert names(content) == ["one", "two"]
        assert [stage["done"] for stage in content["data"]["runs"][0]["stages"]] == [True, True]
        assert "three_train_stats.json" in content["faults"][0]
    complaints = capfd.readouterr().err.splitlines()
    assert len(complaints) == 2
    assert "no such folder" in complaints[0]
    assert "three_train_stats.json" in complaints[1]


def test_what_is_shared_is_the_report_in_one_file(tmp_path):
    for name in ("one", "two", "three"):
        make_run(tmp_path, name)
    with live(tmp_path, "--models", "one", "two") as server:
        with server.send("/report.html") as answer:
            assert answer.headers["content-disposition"] == 'attachment; filename="report.html"'
            shared = answer.read().decode()
        assert main(["--out-dir", str(tmp_path), "--models", "one", "two", "--html", str(tmp_path / "r.html")]) == 0
        assert shared == (tmp_path / "r.html").read_text()
        with server.send("/report.html?models=two&models=three") as answer:
            data = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', answer.read().decode(), re.S)[1])
        assert [run["name"] for run in data["runs"]] == ["two"]
    with live(tmp_path) as server:
        status, answer = server.ask("/report.html?models=nothing")
        assert (status, answer["error"]["param"]) == (404, "models")


def test_runs_that_differ_in_the_seed_alone_are_a_group(tmp_path):
    for seed in range(2):
        make_run(tmp_path, f"plain_s{seed}")
        (tmp_path / f"plain_s{seed}_settings.json").write_text(json.dumps({"lr": 0.1, "seed": seed, "model_args": {}, "plan": {"stages": []}}))
    with live(tmp_path) as server:
        [(label, runs)] = server.ask("/report.json")[1]["data"]["groups"].items()
    assert "2 seeds" in label
    assert runs == ["plain_s0", "plain_s1"]


def test_who_may_look(tmp_path):
    make_run(tmp_path, "secret-run")
    with live(tmp_path, "--token", "secret-token") as server:
        with server.send("/") as page:
            text = page.read().decode()
            assert page.status == 200
            assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "secret-run" not in text
        for path in ("/report.json", "/report.html", "/nothing"):
            assert server.ask(path)[0] == 401
        assert server.ask("/report.json", headers={"Authorization": "Bearer secret-token"})[0] == 200
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert server.ask("/", headers=headers)[0] == 403


@pytest.mark.parametrize(("arguments", "words"), [
    (["--serve", "--json"], "--json and --serve: choose one"), (["--serve", "--html", "x.html"], "--html and --serve: choose one"),
    (["--token", "t"], "--token: only with --serve"), (["--serve", "0.0.0.0:0"], "needs a token"), (["--serve", "nowhere.invalid"], "no such address")])
def test_what_is_wrong_is_said_in_a_line(tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.delenv("LMP_TOKEN", raising=False)
    assert main(["--out-dir", str(tmp_path), *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert len(said.err.splitlines()) == 1


def test_a_port_in_use(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--out-dir", str(tmp_path), "--serve", f"127.0.0.1:{taken.getsockname()[1]}"]) == 2
    assert "is in use by another program" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_request_to_stop_ends_it(tmp_path, number, code):
    command = ["-m", "lmplay.plotstats", "--out-dir", str(tmp_path), "--serve", "127.0.0.1:0"]
    with warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        port = port_of(process.stdout.readline())
        process.send_signal(number)
        _, complaints = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in complaints
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.slow
@needs_browser
def test_a_browser_follows_the_runs(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    for seed in range(3):
        for idea, level in (("plain", 2.0), ("dropout", 1.7)):
            make_run(folder, f"{idea}_s{seed}", level=level + seed / 50, stop=4000 - 1000 * seed, floor=1.5)
            settings = {"lr": 0.1, "seed": seed, "dropout": 0.1 if idea == "dropout" else 0, "model_args": {}, "plan": {"stages": []}}
            (folder / f"{idea}_s{seed}_settings.json").write_text(json.dumps(settings))
    texts = "[...document.querySelectorAll('#chips button')].map(one => one.innerText.trim())"
    drawn = "document.querySelector('#charts .chart').data.filter(one => one.name).map(one => one.name)"
    with live(folder, "--watch", "0.2") as server, browser() as window:
        for width, dark in ((1400, False), (1400, True), (420, False), (420, True)):
            window.look(width, dark)
            window.open(server.url)
            window.until("document.querySelectorAll('.main-svg').length > 5")
            assert window.run("return document.documentElement.dataset.theme") == ("dark" if dark else "light")
            assert window.run("return document.documentElement.scrollWidth <= innerWidth")
            fits = "[...document.querySelectorAll('.chart')].every(one => one.querySelector('.main-svg').getBoundingClientRect().width <= one.clientWidth)"
            window.until(fits)
            window.picture(tmp_path / f"live_{width}_{'dark' if dark else 'light'}.png")
            window.run("document.querySelector('.controls').scrollIntoView()")
            window.picture(tmp_path / f"live_{width}_{'dark' if dark else 'light'}_charts.png")
        window.run("window.isTheSamePage = true; const group = document.getElementById('group'); group.value = 'seeds'; "
                   "group.dispatchEvent(new Event('change'))")
        assert window.run(f"return {texts}") == ["dropout (3 seeds)", "plain (3 seeds)"]
        window.type("#filter", "plain")
        assert window.run(f"return {texts}") == ["plain (3 seeds)"]
        assert window.run(f"return {drawn}") == ["plain_s0", "plain_s1", "plain_s2"]
        rows = "[...document.querySelectorAll('[data-part=runs] tbody tr')].filter(one => !one.hidden).length"
        assert window.run(f"return {rows}") == 3
        before = window.run("return document.querySelector('#charts .chart').data.filter(one => one.name === 'plain_s2')[0].x.length")
        make_run(folder, "plain_s2", stop=4000)
        make_run(folder, "plain_s9", stop=2000)
        window.until(f"{drawn}.includes('plain_s9')")
        assert window.run("return document.querySelector('#charts .chart').data.filter(one => one.name === 'plain_s2')[0].x.length") > before
        assert window.run(f"return {rows}") == 4
        downloads = tmp_path / "downloads"
        window.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
        window.run("document.getElementById('share').click()")
        window.until(f"document.getElementById('state').innerText.startsWith('live') && {rows} === 4")
        for _ in range(200):
            if (downloads / "report.html").exists():
                break
            window.run("return new Promise(done => setTimeout(done, 50))")
        shared = (downloads / "report.html").read_text()
        assert "plain_s9" in shared
        assert "dropout_s0" not in shared
        assert window.run("return window.isTheSamePage") is True
        assert window.complaints() == []
