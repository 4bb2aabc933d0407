"""The hub from outside: whether it answers, and how long it is waited for."""
import pytest

from lmplay import hub as hub_module
from lmplay.errors import Unavailable
from lmplay.hub import hub_problem


def test_waits_double_and_the_hub_may_ask_for_longer_ones(monkeypatch, said):
    slept: list[float] = []
    clock = [0.0]
    monkeypatch.setattr(hub_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(hub_module.time, "sleep", lambda seconds: (slept.append(seconds), clock.__setitem__(0, clock[0] + seconds)))
    patience = hub_module.Patience("source a/b")

    def waits(asked=None):
        slept.clear()
        patience.wait(hub_module.Outage("HTTP 500", asked))
        return round(sum(slept), 3)

    assert [waits() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    with pytest.raises(Unavailable, match=r"source a/b: the hub does not answer \(HTTP 500\), after 91 s"):
        waits()
    patience.renew()
    assert [waits(), waits(290.0), waits()] == [1, 290, 4]
    with pytest.raises(Unavailable, match="it asks to wait 3600 s"):
        waits(3600.0)
    assert said[8] == "source a/b: the hub does not answer (HTTP 500), trying again in 290 s; the position is kept"


@pytest.mark.parametrize(("fault", "reason"), [
    ({}, None), ({"status": 401}, None), ({"status": 404}, None), ({"status": 429}, None), ({"status": 503}, "HTTP 503"),
    ({"body": b"<html>Welcome to our network"}, "answers with a web page"), ({"cut": 0}, "")])
def test_signs_of_life(server, fault, reason):
    if fault:
        server.fault("/api/datasets", **fault)
    found = hub_problem()
    assert found is None if reason is None else reason in found
