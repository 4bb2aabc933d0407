"""`lmp_generator --serve`: OpenAI's interface."""
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import generate as run

pytest.importorskip("uvicorn")
from served import served, until

from lmplay.errors import UserError
from lmplay.generate.asked import ChatRequest, CompletionRequest, read_request
from lmplay.generate.worker import Worker
from lmplay.modules.cache import KeyValueCache
from lmplay.web.guard import Refused
from lmplay.writing.continuous import ContinuousBatch
from lmplay.writing.prompting import Prompting


@pytest.fixture(scope="module")
def server(trained):
    with served("--out-dir", trained, "--as", "text", "--greedy", "--max-tokens", 24, "--device", "cpu") as client:
        yield client


CHAT = {"messages": [{"role": "user", "content": "Who?"}]}


def test_an_answer_is_what_lmp_generator_says(server):
    status, answer = server.ask("/v1/chat/completions", CHAT)
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "gpt2ish_model"
    message = {"role": "assistant", "content": "A cat.", "refusal": None}
    assert answer["choices"] == [{"index": 0, "finish_reason": "stop", "logprobs": None, "message": message}]
    assert answer["usage"]["completion_tokens"] == len("A cat.")
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + len("A cat.")
    said = [*CHAT["messages"], answer["choices"][0]["message"], {"role": "user", "content": [{"type": "text", "text": "Where?"}]}]
    assert server.ask("/v1/chat/completions", {"messages": said})[1]["choices"][0]["message"]["content"] == "Here."


def test_20_greedy_texts_are_those_of_lmp_generator(capsys, trained, server, tmp_path):
    prompts = [("user: " * (number % 4) + "Who? A cat"[number % 7:]) for number in range(20)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    _, out, _ = run(capsys, "--out-dir", trained, "--prompts", tmp_path / "p.jsonl", "--as", "text", "--greedy", "--max-tokens", 24, "--json")
    texts = [json.loads(line)["text"] for line in out.splitlines()]
    assert len(set(texts)) > 3
    assert [choice["text"] for choice in server.ask("/v1/completions", {"prompt": prompts})[1]["choices"]] == texts
    with ThreadPoolExecutor(20) as pool:
        assert [*pool.map(server.text, prompts)] == texts


def test_a_seed_gives_the_texts_of_lmp_generator_whoever_is_beside(capsys, trained, server):
    _, out, _ = run(capsys, "--out-dir", trained, "--prompt", "Who", "--as", "text", "--temperature", 1.5, "--seed", 7, "--samples", 3, "--json",
                    "--max-tokens", 40)
    texts = [json.loads(line)["text"] for line in out.splitlines()]
    assert len(set(texts)) == 3
    asked = {"prompt": "Who", "temperature": 1.5, "seed": 7, "n": 3, "max_tokens": 40}
    over = threading.Event()

    def disturb(number):
        while not over.is_set():
            server.text("x" * number, temperature=1, max_tokens=number)

    with ThreadPoolExecutor(5) as pool:
        others = [pool.submit(disturb, number) for number in (1, 5, 17, 30)]
        found = [server.ask("/v1/completions", asked)[1]["choices"] for _ in range(5)]
        over.set()
    assert not any(other.exception() for other in others)
    assert [[choice["text"] for choice in choices] for choices in found] == [texts] * 5
    assert server.text("Who", temperature=1.5, max_tokens=40) != server.text("Who", temperature=1.5, max_tokens=40)  # without a seed


def test_streams_join_to_the_same_text(server):
    events = server.events("/v1/completions", {"prompt": ["Who? ", "A c"], "max_tokens": 12, "stream_options": {"include_usage": True}})
    texts = ["".join(event["choices"][0]["text"] for event in events if event["choices"] and event["choices"][0]["index"] == number) for number in (0, 1)]
    assert texts == [server.text("Who? ", max_tokens=12), server.text("A c", max_tokens=12)]
    assert len(events) > 6
    assert events[-1]["usage"]["completion_tokens"] == 24
    events = server.events("/v1/chat/completions", CHAT)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "A cat."
    assert [event["choices"][0]["finish_reason"] for event in events][-2:] == [None, "stop"]


def test_stop_texts_tokens_and_lengths(server):
    status, answer = server.ask("/v1/completions", {"prompt": [list(b"user: Who?\n\nassistant: ")], "stop": ["zz", "at"]})
    assert (status, answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (200, "A c", "stop")
    _, answer = server.ask("/v1/completions", {"prompt": list(b"user: Who?\n\nassistant: "), "max_tokens": 3, "stop": "zz"})
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("A c", "length")
    assert server.ask("/v1/completions", {"prompt": "Who", "max_completion_tokens": 2})[1]["usage"]["completion_tokens"] == 2


def test_models_and_health(server):
    status, answer = server.ask("/v1/models")
    assert (status, [model["id"] for model in answer["data"]]) == (200, ["gpt2ish_model"])
    assert server.ask("/v1/models/gpt2ish_model")[1] == answer["data"][0]
    assert server.ask("/v1/models/other")[0] == 404
    until(lambda: server.ask("/health")[1] == {"status": "ok", "models": ["gpt2ish_model"], "written": 0, "waiting": 0})
    assert server.text("Who", model="gpt2ish_model", max_tokens=1)


@pytest.mark.parametrize(("path", "body", "status", "param", "words"), [
    ("/v1/completions", b"{", 400, None, "not valid JSON"), ("/v1/completions", b"[]", 400, None, "must be a JSON object"),
    ("/v1/completions", b'{"prompt": "\\ud800"}', 400, None, "not valid JSON"), ("/v1/completions", b"\xff", 400, None, "not valid JSON"),
    ("/v1/completions", b"[" * 100_000, 400, None, "nested too deeply"), ("/v1/completions", b'{"prompt": "a", "temperature": NaN}', 400, None, "JSON"),
    ("/v1/completions", b'{"prompt": "a", "seed": ' + b"1" * 5000 + b"}", 400, None, "a number in it"),
    ("/v1/completions", {}, 400, "prompt", "required"), ("/v1/completions", {"prompt": 3}, 400, "prompt", "a list of texts"),
    ("/v1/completions", {"prompt": []}, 400, "prompt", "at least one"), ("/v1/completions", {"prompt": [999999]}, 400, "prompt", "0 to 256"),
    ("/v1/completions", {"prompt": [True]}, 400, "prompt", "token ids"), ("/v1/completions", {"prompt": ["a"], "n": 1000}, 400, "n", "at most 80"),
    ("/v1/completions", {"prompt": "a", "temperature": 3}, 400, "temperature", "less than or equal to 2"),
    ("/v1/completions", {"prompt": "a", "temperature": "1"}, 400, "temperature", "number"),
    ("/v1/completions", {"prompt": "a", "repetition_penalty": 1e-300}, 400, "repetition_penalty", "greater than or equal to 0.01"),
    ("/v1/completions", {"prompt": "a", "repetition_penalty": 1e300}, 400, "repetition_penalty", "less than or equal to 100"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 5000}, 400, "max_tokens", "at most 4096"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 5, "max_completion_tokens": 6}, 400, "max_tokens", "differ"),
    ("/v1/completions", {"prompt": "a", "temprature": 1}, 400, "temprature", "Did you mean 'temperature'?"),
    ("/v1/completions", {"prompt": "a", "logprobs": 2}, 400, "logprobs", "does not have it"),
    ("/v1/completions", {"prompt": "a", "echo": True}, 400, "echo", "does not have it"),
    ("/v1/completions", {"prompt": "a", "stop": ""}, 400, "stop", "at least 1 character"),
    ("/v1/completions", {"prompt": "a", "stop": "b" * 257}, 400, "stop", "at most 256 characters"),
    ("/v1/completions", {"prompt": "a", "stop": ["b" * 257]}, 400, "stop", "at most 256 characters"),
    ("/v1/completions", {"prompt": "a", "model": "b"}, 404, "model", "there is gpt2ish_model"),
    ("/v1/completions", {"prompt": "a" * 129}, 400, "prompt", "context is 128 tokens"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages", "at least 1"),
    ("/v1/chat/completions", {"messages": [{"role": "nobody", "content": "a"}]}, 400, "messages", "messages.0.role"),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "a"}]}, 400, "messages", "what a user says"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, 400, "messages", "messages.0"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 200}]}, 400, "messages", "context is 128 tokens"),
    ("/v1/chat/completions", {**CHAT, "tools": [{}]}, 400, "tools", "does not have it"),
    ("/v1/nothing", {}, 404, None, "There is no /v1/nothing"), ("/v1/models", {}, 405, None, "does not take POST")])
def test_what_is_wrong_is_told_in_the_shape_of_openai(server, path, body, status, param, words):
    found, answer = server.ask(path, body)
    assert (found, answer["error"]["param"]) == (status, param)
    assert words in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(("kind", "body"), [
    (CompletionRequest, {"prompt": [1] * 1000 + ["a"]}), (CompletionRequest, {"prompt": [[1]] * 1000 + [["a"] * 1000]}),
    (CompletionRequest, {"prompt": [{}] * 1000}), (CompletionRequest, {"prompt": "a", "stop": [1] * 1000}), (ChatRequest, {"messages": [1] * 1000}),
    (ChatRequest, {"messages": [{"role": "user", "content": [1] * 1000}]}), (ChatRequest, {"messages": CHAT["messages"] * 1001})])
def test_of_a_long_list_the_first_fault_is_enough(kind, body):
    with pytest.raises(Refused) as refused:
        read_request(body, kind)
    assert refused.value.__context__.error_count() < 10


def test_what_asks_for_nothing_is_taken(server):
    more = {"user": "me", "frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {}, "logprobs": None, "stop": None, "n": None, "seed": -3,
            "stream": False}
    assert server.text("Who", temperature=1e-300, max_tokens=5) == server.text("Who", temperature=0, max_tokens=5)
    assert server.text("Who", **more, echo=False, best_of=1, suffix=None, max_tokens=2)
    assert server.ask("/v1/chat/completions", {**CHAT, **more, "logprobs": False, "response_format": {"type": "text"}, "tools": [], "store": False})[0] == 200


def test_a_page_of_a_stranger_reaches_nothing(server):
    for headers in ({"Host": "evil.example:8000"}, {"Host": ""}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": "localhost.evil.example"}):
        for path in ("/", "/health", "/v1/models", "/nothing"):
            assert server.ask(path, headers=headers)[0] == 403
    with server.send("/v1/models", headers={"Host": f"localhost:{server.port}", "Origin": f"http://localhost:{server.port}"}) as answer:
        assert answer.status == 200
        assert "access-control-allow-origin" not in answer.headers
    with server.send("/v1/completions", method="OPTIONS", headers={"Origin": "http://evil.example"}) as answer:
        assert answer.status == 403


def test_a_token_is_asked_for(trained, monkeypatch):
    monkeypatch.setenv("LMP_TOKEN", "from-the-environment")
    with served("--out-dir", trained, "--token", "secret-1", "--device", "cpu") as client:
        right = {"Authorization": "Bearer secret-1"}
        for path in ("/v1/models", "/health", "/nothing"):
            for given in ("", "Bearer", "Bearer secret-2", "Bearer secret-1x", "Bearer from-the-environment", "Basic secret-1", "secret-1", "Bearer \xe9"):
                status, answer = client.ask(path, headers={"Authorization": given})
                assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            assert client.ask(path)[0] == 401
        assert client.ask("/v1/models", headers=right)[0] == 200
        assert client.ask("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=right)[0] == 200
        assert client.ask("/v1/models", headers={**right, "Host": "evil.example"})[0] == 403
        with client.send("/") as page:  # which tells nothing
            assert page.status == 200
            assert b"gpt2ish" not in page.read()


def test_what_the_model_is_told_before_a_conversation(trained):
    def length(client, *told):
        return client.ask("/v1/chat/completions", {"messages": [*told, *CHAT["messages"]], "max_tokens": 1})[1]["usage"]["prompt_tokens"]

    kind, short = ({"role": "system", "content": text} for text in ("Be kind.", "No."))
    with served("--out-dir", trained, "--system", kind["content"], "--device", "cpu") as client:
        assert length(client) == length(client, kind) > length(client, short)
        assert length(client, {**kind, "role": "developer"}) == length(client, kind)


def test_another_address_is_reached_by_any_name_with_the_token(trained, monkeypatch):
    monkeypatch.setenv("LMP_TOKEN", "from-the-environment")
    with served("--out-dir", trained, "--serve", "0.0.0.0:0", "--device", "cpu") as client:
        for headers, status in (({"Authorization": "bearer from-the-environment"}, 200), ({}, 401),
                                ({"Authorization": "Bearer from-the-environment", "Origin": "http://evil.example"}, 403)):
            assert client.ask("/v1/models", headers={"Host": "my-machine.example:8000", **headers})[0] == status


def test_limits(trained):
    with served("--out-dir", trained, "--limit-body", 300, "--limit-tokens", 8, "--max-tokens", 100, "--device", "cpu") as client:
        assert client.ask("/v1/completions", {"prompt": "a" * 300})[0] == 413
        assert client.ask("/v1/completions", b"a" * 100_000)[0] == 413
        assert client.ask("/v1/completions", {"prompt": "a", "max_tokens": 9})[0] == 400
        assert client.ask("/v1/completions", {"prompt": "", "temperature": 2})[1]["usage"]["completion_tokens"] <= 8
        assert client.ask("/health")[0] == 200


@pytest.fixture
def slowly(monkeypatch):
    """Let the model write only while this is set."""
    going, original = threading.Event(), KeyValueCache.begin

    def begin(self, n_tokens):
        assert going.wait(60)
        original(self, n_tokens)

    monkeypatch.setattr(KeyValueCache, "begin", begin)
    yield going
    going.set()


def test_a_full_queue_is_said_and_nothing_is_lost(trained, slowly):
    with served("--out-dir", trained, "--batch-size", 2, "--limit-queue", 3, "--device", "cpu") as client, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(client.ask, "/v1/completions", {"prompt": "Who", "max_tokens": 3}) for _ in range(5)]
        until(lambda: client.ask("/health")[1]["written"] + client.ask("/health")[1]["waiting"] == 5)
        with client.send("/v1/completions", {"prompt": "a"}) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
            assert json.loads(answer.read())["error"]["type"] == "rate_limit_error"
        slowly.set()
        assert [one.result()[0] for one in asked] == [200] * 5
        assert client.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200


def test_requests_that_are_being_read_are_counted(trained):
    with served("--out-dir", trained, "--batch-size", 1, "--limit-queue", 0, "--device", "cpu") as client:
        begun = [client.send_only("/v1/completions", b"{", headers={"Content-Length": "100"}) for _ in range(2)]
        until(lambda: client.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 429)
        for one in begun:
            one.close()
        until(lambda: client.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_keeps_nobody_waiting(trained, slowly, monkeypatch, caplog, stream):
    monkeypatch.setattr(Prompting, "ends", set())  # no text ends by itself
    with served("--out-dir", trained, "--batch-size", 1, "--limit-tokens", 1_000_000, "--as", "text", "--device", "cpu") as client:
        gone, waits = (client.send_only("/v1/completions", {"prompt": "Who", "max_tokens": 1_000_000, "stream": stream}) for _ in range(2))
        until(lambda: (lambda health: (health["written"], health["waiting"]) == (1, 1))(client.ask("/health")[1]))
        gone.close()
        waits.close()
        slowly.set()
        until(lambda: (lambda health: (health["written"], health["waiting"]) == (0, 0))(client.ask("/health")[1]))
        assert client.text("Who", max_tokens=2)
    # on a busy machine texts are sent to it for a moment longer
    assert {record.getMessage() for record in caplog.records} <= {"socket.send() raised exception."}


def test_time_ends_a_text_and_waiting(trained, slowly):
    with served("--out-dir", trained, "--batch-size", 1, "--limit-seconds", 1, "--as", "text", "--device", "cpu") as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.ask, "/v1/completions", {"prompt": "Who", "max_tokens": 4000})
        until(lambda: client.ask("/health")[1]["written"] == 1)
        second = pool.submit(client.ask, "/v1/completions", {"prompt": "Who", "max_tokens": 4000})
        threading.Timer(1.5, slowly.set).start()
        status, answer = first.result()
        assert (status, answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == (200, "length", 1)
        status, answer = second.result()
        assert (status, answer["error"]["code"]) == (503, "timeout")
        until(lambda: client.ask("/health")[1]["written"] == 0)
        assert client.ask("/health")[1]["status"] == "ok"


def test_a_model_that_fails_ends_no_server(trained, monkeypatch, capfd):
    with served("--out-dir", trained, "--device", "cpu") as client:
        with monkeypatch.context() as patch:
            def fail(self, n_tokens):
                raise RuntimeError("out of memory, say")

            patch.setattr(KeyValueCache, "begin", fail)
            status, answer = client.ask("/v1/completions", {"prompt": "a"})
            assert (status, answer["error"]["type"]) == (500, "server_error")
            with client.send("/v1/completions", {"prompt": "a", "stream": True}) as stream:
                assert '"server_error"' in stream.read().decode()
        assert client.text("Who", max_tokens=2)
    assert "out of memory, say" in capfd.readouterr().err


@pytest.mark.parametrize("place", ["add", "remove", "step"])
def test_a_batch_that_fails_anywhere_ends_no_server(trained, monkeypatch, capfd, place):
    with served("--out-dir", trained, "--as", "text", "--greedy", "--device", "cpu") as client:
        with monkeypatch.context() as patch:
            def fail(self, *arguments):
                raise RuntimeError("a fault, say")

            patch.setattr(ContinuousBatch, place, fail)
            with client.send("/v1/completions", {"prompt": ["Who", "a"], "max_tokens": 2, "stream": True}) as stream:
                stream.read()
            until(lambda: client.ask("/health")[1].get("written") == 0)
        assert client.ask("/health")[0] == 200
        assert client.text("Who", max_tokens=2)
    assert "a fault, say" in capfd.readouterr().err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_ends_the_thread_that_writes_is_told(trained, monkeypatch):
    def fail(self):
        raise RuntimeError("a fault, say")

    with served("--out-dir", trained, "--device", "cpu") as client:
        monkeypatch.setattr(Worker, "_take", fail)
        assert client.ask("/v1/completions", {"prompt": "a"})[0] == 503
        until(lambda: client.ask("/health")[0] == 503)
        assert client.ask("/health")[1]["status"] == "failed"


def test_a_template_that_refuses_what_ends_a_text_is_a_fault_of_the_request(trained, monkeypatch):
    def refuse(self):
        raise UserError("the template does not write this")

    with served("--out-dir", trained, "--device", "cpu") as client:
        with monkeypatch.context() as patch:
            patch.setattr(Prompting, "stop_texts", property(refuse))
            assert client.ask("/v1/chat/completions", CHAT)[0] == 400
        assert client.ask("/v1/chat/completions", CHAT)[0] == 200


def test_at_the_end_what_waits_is_refused_and_what_is_written_ends(trained, slowly):
    with ThreadPoolExecutor(3) as pool, served("--out-dir", trained, "--batch-size", 1, "--greedy", "--device", "cpu") as client:
        first = pool.submit(client.ask, "/v1/chat/completions", CHAT)
        until(lambda: client.ask("/health")[1]["written"] == 1)
        second = pool.submit(client.ask, "/v1/chat/completions", CHAT)
        until(lambda: client.ask("/health")[1]["waiting"] == 1)
        client.stop()
        assert second.result()[0] == 503
        slowly.set()
        assert first.result()[1]["choices"][0]["message"]["content"] == "A cat."


def test_what_takes_longer_than_the_grace_is_refused(trained, monkeypatch):
    with served("--out-dir", trained, "--grace", 0, "--device", "cpu") as client:
        monkeypatch.setattr(Prompting, "ends", set())  # no text ends by itself
        with client.send("/v1/completions", {"prompt": "Who", "max_tokens": 4096, "stream": True}) as stream:
            assert stream.readline().startswith(b"data: {")
            client.stop()
            assert b'"code": "ending"' in stream.read()


def test_50_clients_at_once_lose_nothing(trained):
    with served("--out-dir", trained, "--greedy", "--batch-size", 8, "--limit-queue", 8, "--max-tokens", 8, "--device", "cpu") as client:
        both = threading.Barrier(50)

        def ask(number):
            both.wait()
            if number % 2:
                with client.send("/v1/chat/completions", {**CHAT, "stream": True}) as answer:
                    return answer.status, answer.read().decode().count("finish_reason\": \"stop")
            status, answer = client.ask("/v1/chat/completions", CHAT)
            return status, answer.get("choices", [{}])[0].get("message", {}).get("content") == "A cat."

        with ThreadPoolExecutor(50) as pool:
            found = [*pool.map(ask, range(50))]
        assert {status for status, _ in found} <= {200, 429}
        assert all(whole for status, whole in found if status == 200)
        assert sum(status == 200 for status, _ in found) >= 16
        assert client.ask("/v1/chat/completions", CHAT)[1]["choices"][0]["message"]["content"] == "A cat."
    with served("--out-dir", trained, "--greedy", "--batch-size", 8, "--max-tokens", 8, "--device", "cpu") as client, ThreadPoolExecutor(50) as pool:
        found = [*pool.map(lambda _: client.ask("/v1/chat/completions", CHAT)[1]["choices"][0]["message"]["content"], range(50))]
        assert found == ["A cat."] * 50


def test_the_client_of_openai(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    messages = CHAT["messages"]
    assert client.chat.completions.create(model=model, messages=messages).choices[0].message.content == "A cat."
    parts = client.chat.completions.create(model=model, messages=messages, stream=True, stream_options={"include_usage": True})
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == "A cat."
    assert len(client.completions.create(model=model, prompt=["Who", "A c"], n=2, max_tokens=4, seed=1, temperature=1).choices) == 4
    with client.completions.create(model=model, prompt="Who", stream=True, max_tokens=4) as parts:
        assert "".join(part.choices[0].text for part in parts) == server.text("Who", max_tokens=4)
    with pytest.raises(openai.NotFoundError, match="There is no model 'x'"):
        client.completions.create(model="x", prompt="a")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt="a" * 500)
    assert caught.value.code == "context_length_exceeded"
