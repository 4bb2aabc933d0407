"""Files of object stores and web servers, from servers on 127.0.0.1: S3 by moto, where it is installed, the web and the hub by the tests' own."""
import json
import os
import sys
import threading

import pyarrow
import pytest
from files import write
from helpers import TINY, compare_runs, sentences, stop_at, write_plan
from hub_server import HubServer
from pyarrow import parquet
from stages import open_stage, truths

from lmplay.data.sources import open_source
from lmplay.errors import Unavailable, UserError
from lmplay.plan.load import load_plan
from lmplay.plan.schema import SourceSpec
from lmplay.train.__main__ import main

ROWS = [f"text number {i} é" for i in range(40)]


def lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("LMP_HUB_PATIENCE", "5")
    monkeypatch.setattr("lmplay.hub._FIRST_WAIT", 0.01)
    with HubServer(tmp_path / "server") as server:
        folder = tmp_path / "server" / "store"
        write(folder / "texts" / "a.jsonl", lines(ROWS[:15]))
        write(folder / "texts" / "b.jsonl", lines(ROWS[15:]))
        write(folder / "texts" / "picture.png", "x")
        parquet.write_table(pyarrow.table({"text": ROWS, "id": [*range(40)]}), folder / "rows.parquet", row_group_size=7)
        yield server


def opened(path, tmp_path, **keys):
    return open_stage(tmp_path, {"dataset": {"path": path, **keys}, "validation": 0, "shuffle": False})


def bytes_sent(server):
    return [span for method, path, span in server.requests if method == "GET" and path.endswith((".jsonl", ".parquet"))]


@pytest.mark.parametrize("streaming", [None, True])
@pytest.mark.parametrize("path", ["texts/*.jsonl", "texts/[ab].jsonl", "rows.parquet"])
def test_a_web_server_gives_the_rows_of_its_files(server, tmp_path, path, streaming):
    data = opened(f"{server.url}/store/{path}", tmp_path, streaming=streaming)
    assert truths(data)[0] == ROWS
    assert (tmp_path / "datasets" / "stored").exists() == (streaming is None)


@pytest.mark.parametrize("streaming", [None, True])
@pytest.mark.parametrize("path", ["texts/*.jsonl", "rows.parquet"])
def test_a_position_is_exact(server, tmp_path, path, streaming):
    data = opened(f"{server.url}/store/{path}", tmp_path, streaming=streaming)
    stream = data.open_samples()
    for _ in range(17):
        stream.next()
    position = json.loads(json.dumps(stream.state()))
    again = opened(f"{server.url}/store/{path}", tmp_path, streaming=streaming)
    assert again.fingerprints() == data.fingerprints()
    rest = again.open_samples()
    rest.restore(position)
    assert [sample.truth for sample in iter(rest.next, None)] == ROWS[17:]


def test_files_are_copied_once_and_again_when_they_have_changed(server, tmp_path):
    path = f"{server.url}/store/texts/*.jsonl"
    before = opened(path, tmp_path).fingerprints()
    server.requests.clear()
    assert opened(path, tmp_path).fingerprints() == before
    assert bytes_sent(server) == []
    write(server.root / "store" / "texts" / "a.jsonl", lines(["new", *ROWS[1:15]]))
    data = opened(path, tmp_path)
    assert truths(data)[0] == ["new", *ROWS[1:]]
    assert data.fingerprints() != before
    assert {name for _, name, _ in server.requests if name.endswith(".jsonl")} >= {"/store/texts/a.jsonl"}
    assert not [name for method, name, _ in server.requests if method == "GET" and name.endswith("b.jsonl")]


@pytest.mark.parametrize("fault", [{"status": 503, "times": 3}, {"status": 429, "headers": {"Retry-After": "0"}, "times": 2}, {"cut": 100, "times": 2}],
                         ids=str)
@pytest.mark.parametrize("streaming", [None, True])
def test_a_store_that_fails_for_a_while_is_asked_again(server, tmp_path, fault, streaming, monkeypatch):
    said = []
    monkeypatch.setattr("lmplay.hub.waiting.say", said.append)
    server.fault(".jsonl", method="GET", **fault)
    assert truths(opened(f"{server.url}/store/texts/*.jsonl", tmp_path, streaming=streaming))[0] == ROWS
    assert any("the store does not answer" in line for line in said)


def test_a_copy_that_was_interrupted_goes_on(server, tmp_path, monkeypatch):
    monkeypatch.setattr("lmplay.data.sources.store._LARGEST", 200)
    monkeypatch.setenv("LMP_HUB_PATIENCE", "0")
    server.fault("b.jsonl", method="GET", status=503, times=None, after=2)
    with pytest.raises(Unavailable, match="the store does not answer"):
        opened(f"{server.url}/store/texts/b.jsonl", tmp_path)
    assert not list((tmp_path / "datasets" / "stored").rglob("files/*.jsonl"))
    server.faults.clear()
    server.requests.clear()
    needed = []
    monkeypatch.setattr("lmplay.data.sources.stored.check_free_bytes", lambda folder, size: needed.append(size))
    assert truths(opened(f"{server.url}/store/texts/b.jsonl", tmp_path))[0] == ROWS[15:]
    assert needed == [len(lines(ROWS[15:])) - 400]
    assert bytes_sent(server)[0].startswith("bytes=400-")
    assert not list((tmp_path / "datasets" / "stored").rglob("parts/*.jsonl"))


def test_a_copy_of_a_file_without_a_version_does_not_go_on(server, tmp_path, monkeypatch):
    monkeypatch.setattr("lmplay.data.sources.store._LARGEST", 200)
    monkeypatch.setenv("LMP_HUB_PATIENCE", "0")
    server.versions = ""
    server.fault("b.jsonl", method="GET", status=503, after=2)
    with pytest.raises(Unavailable):
        opened(f"{server.url}/store/texts/b.jsonl", tmp_path)
    server.requests.clear()
    assert truths(opened(f"{server.url}/store/texts/b.jsonl", tmp_path))[0] == ROWS[15:]
    assert bytes_sent(server)[0].startswith("bytes=0-")


def test_a_file_that_is_replaced_while_it_is_copied_is_copied_again(server, tmp_path, monkeypatch):
    from lmplay.data.sources.store import Store

    path, read, left = server.root / "store" / "texts" / "a.jsonl", Store.read, [1]

    def read_and_replace(store, *arguments):
        data = read(store, *arguments)
        if left:
            number = left.pop()
            write(path, lines([f"version {number} {i}" for i in range(15)]))
        return data

    monkeypatch.setattr(Store, "read", read_and_replace)
    assert truths(opened(f"{server.url}/store/texts/a.jsonl", tmp_path))[0] == [f"version 1 {i}" for i in range(15)]
    left += range(2, 20)
    write(path, lines(ROWS))
    with pytest.raises(UserError, match="has changed each time while it was copied"):
        opened(f"{server.url}/store/texts/a.jsonl", tmp_path)


def test_the_first_error_ends_the_other_copies(server, tmp_path, monkeypatch):
    monkeypatch.setattr("lmplay.data.sources.store._LARGEST", 10)
    server.fault("a.jsonl", method="GET", status=403, times=None)
    server.fault("b.jsonl", method="GET", delay=0.05, times=None)
    with pytest.raises(UserError, match="access is refused"):
        opened(f"{server.url}/store/texts/*.jsonl", tmp_path)
    assert len(bytes_sent(server)) < len(lines(ROWS[15:])) // 10


def test_a_copy_ends_when_somebody_asks_to_stop(server, tmp_path, monkeypatch):
    monkeypatch.setattr("lmplay.data.sources.store._LARGEST", 200)
    monkeypatch.setattr("lmplay.hub.waiting.stopped", lambda: True)
    with pytest.raises(Unavailable, match="stopped while it was copied"):
        opened(f"{server.url}/store/texts/b.jsonl", tmp_path)
    assert len(bytes_sent(server)) == 1


def test_a_file_with_only_a_date_is_copied_again_when_it_has_changed(server, tmp_path):
    server.versions, file = "Last-Modified", server.root / "store" / "texts" / "a.jsonl"
    os.utime(file, (10**9, 10**9))
    assert truths(opened(f"{server.url}/store/texts/a.jsonl", tmp_path))[0] == ROWS[:15]
    write(file, lines(ROWS[:15]).replace("text number", "next number"))
    assert truths(opened(f"{server.url}/store/texts/a.jsonl", tmp_path))[0][0] == "next number 0 é"


def test_addresses_that_differ_in_their_query_have_copies_of_their_own(server, tmp_path):
    for query in ("?v=1", "?v=2", "?v=1"):
        opened(f"{server.url}/store/texts/a.jsonl{query}", tmp_path)
    assert len(list((tmp_path / "datasets" / "stored").rglob("files/a.jsonl"))) == 2


@pytest.mark.parametrize("path", ["texts/*.jsonl", "**/*.jsonl", "*/*.jsonl"])
def test_a_listing_that_fails_is_no_empty_folder(server, tmp_path, monkeypatch, path):
    server.fault("/store/texts/", status=503, times=2)
    assert truths(opened(f"{server.url}/store/{path}", tmp_path))[0] == ROWS
    refusal = server.fault("/store/texts/", status=403, times=None)
    with pytest.raises(UserError, match="access is refused"):
        opened(f"{server.url}/store/{path}", tmp_path)
    refusal.status = 503
    monkeypatch.setenv("LMP_HUB_PATIENCE", "0")
    with pytest.raises(Unavailable, match="the store does not answer"):
        opened(f"{server.url}/store/{path}", tmp_path)


def test_a_server_without_ranges_gives_small_files_only(server, tmp_path, monkeypatch):
    server.ranges = False
    assert truths(opened(f"{server.url}/store/rows.parquet", tmp_path, streaming=True))[0] == ROWS
    monkeypatch.setattr("lmplay.data.sources.store._LARGEST", 200)
    with pytest.raises(UserError, match="the server gives no parts of a file"):
        opened(f"{server.url}/store/texts/b.jsonl", tmp_path)


def test_a_signature_is_not_said(server, tmp_path):
    server.fault("a.jsonl", status=403, times=None)
    with pytest.raises(UserError, match="access is refused") as caught:
        opened(f"{server.url}/store/texts/a.jsonl?X-Amz-Signature=secret", tmp_path)
    assert "secret" not in str(caught.value)


def test_a_wrong_certificate_is_no_outage(server, tmp_path, monkeypatch):
    import ssl

    from lmplay.data.sources.store import Store

    def refuse(store):
        raise ConnectionError("cannot connect to https://h/a?sig=secret") from ssl.SSLCertVerificationError("self-signed certificate")

    monkeypatch.setattr(Store, "_find", refuse)
    with pytest.raises(UserError, match="certificate is not trusted") as caught:
        opened("https://h/a.jsonl", tmp_path)
    assert "secret" not in str(caught.value)


def test_several_openings_at_once_copy_a_file_once(server, tmp_path):
    path, found = f"{server.url}/store/texts/*.jsonl", []
    threads = [threading.Thread(target=lambda: found.append(truths(opened(path, tmp_path))[0])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [ROWS] * 3
    assert len(bytes_sent(server)) == 2


@pytest.mark.parametrize(("path", "keys", "says"), [
    ("store/none.jsonl", {}, "there is no such bucket, folder or file"),
    ("store/texts/*.csv", {}, "nothing is there"),
    ("store/texts", {}, "is a web page, not a file of data"),
    ("store/texts/*.png", {}, "nothing there can be read"),
    ("store/texts/*.txt", {"streaming": True}, "nothing is there"),
    ("store/refused.jsonl", {}, "access is refused"),
    ("store/rows.parquet", {"split": "train"}, "'split' chooses among the files of a folder"),
    ("store/**", {"streaming": True}, "only Parquet files, or only JSON lines, are read over the network"),
    ("store/texts/a.jsonl", {"streaming": True, "encoding_errors": "refuse"}, "'encoding_errors' is for files on this disk"),
])
def test_what_is_wrong_is_said_in_one_line(server, tmp_path, path, keys, says):
    server.fault("refused", status=403, times=None)
    with pytest.raises(UserError) as caught:
        opened(f"{server.url}/{path}", tmp_path, **keys)
    line, = str(caught.value).splitlines()
    assert f"source {server.url}/{path}" in line
    assert says in line


def test_a_server_that_is_not_there_may_come_back(server, tmp_path, monkeypatch):
    monkeypatch.setenv("LMP_HUB_PATIENCE", "0")
    server.stop()
    with pytest.raises(Unavailable, match="the store does not answer"):
        opened(f"{server.url}/store/texts/a.jsonl", tmp_path)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for path, package in (("s3://bucket/a.jsonl", "pip install 'lmplay[s3]'"), ("gs://bucket/a.jsonl", "pip install 'lmplay[gs]'")):
        with pytest.raises(UserError) as caught:
            open_source(SourceSpec(path=path), "train", tmp_path)
        assert package in str(caught.value)
        assert len(caught.value.faults) == 1


def test_a_plan_takes_addresses_and_refuses_wrong_ones(tmp_path):
    plan = load_plan(str(write_plan(tmp_path, {"one": {"dataset": ["s3://b/x/*.jsonl", "gs://b/y.parquet", "hf://datasets/o/n/a.jsonl", "https://h/z.txt"]}})))
    assert [spec.path for spec in plan.stages[0].dataset] == ["s3://b/x/*.jsonl", "gs://b/y.parquet", "hf://datasets/o/n/a.jsonl", "https://h/z.txt"]
    for wrong in ("s3:/b/x", "s3://b", {"path": "s3://b/x.jsonl", "config": "c"}, {"path": "hf://datasets/o/n/a", "revision": "r"}):
        with pytest.raises(UserError):
            load_plan(str(write_plan(tmp_path, {"one": {"dataset": wrong}})))


def test_a_name_that_would_leave_the_folder_is_refused(server, tmp_path, monkeypatch):
    from lmplay.data.sources.store import About, Found, Store

    monkeypatch.setattr(Store, "_find", lambda store: Found("s3://b", {"../../evil.jsonl": About("b/../../evil.jsonl", 3, "")}, is_file=False))
    with pytest.raises(UserError, match="no name for a file of this machine"):
        opened("s3://b/*.jsonl", tmp_path)


def test_a_file_of_the_hub_is_read_by_its_address(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    write(server.root / "o" / "texts" / "data" / "a.jsonl", lines(ROWS[:9]))
    write(server.root / "o" / "texts" / "data" / "b.jsonl", lines(ROWS[9:]))
    for path, expected in (("data/a.jsonl", ROWS[:9]), ("data/*.jsonl", ROWS), ("data", ROWS)):
        for streaming in (None, True):
            assert truths(opened(f"hf://datasets/o/texts/{path}", tmp_path, streaming=streaming))[0] == expected


def test_a_run_over_a_store_goes_on_exactly(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(server.root / "store" / "long.jsonl", lines([sentences(1 + i % 5, f"cat {i}") for i in range(60)]))
    for name, streaming in (("copied", None), ("streamed", True)):
        plan = write_plan(tmp_path, {"one": {"dataset": {"path": f"{server.url}/store/long.jsonl", **({"streaming": True} if streaming else {})},
                                             "validation": 0, "epochs": 2, "shuffle": {"buffer": 10}}})
        flags = [*TINY, "--training-plan", str(plan), "--batch-size", "6", "--dropout", "0"]
        assert main([*flags, "--out-dir", f"{name}_whole"]) == 0
        with monkeypatch.context() as patch:
            stop_at(patch, range(10, 1000, 25))
            codes = []
            while not codes or codes[-1] == 130:
                server.fault(".jsonl", method="GET", status=503)
                codes.append(main([*flags, "--out-dir", f"{name}_stopped"]))
        assert codes[-1] == 0
        assert len(codes) > 2
        assert compare_runs(tmp_path / f"{name}_whole", tmp_path / f"{name}_stopped") == []


@pytest.fixture(scope="module")
def s3():
    """An S3 of moto with a bucket of files; its address is where botocore looks for it."""
    pytest.importorskip("s3fs")
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    client.create_bucket(Bucket="texts")
    client.put_object(Bucket="texts", Key="data/train/a.jsonl", Body=lines(ROWS[:15]).encode())
    client.put_object(Bucket="texts", Key="data/train/b.jsonl", Body=lines(ROWS[15:]).encode())
    client.put_object(Bucket="texts", Key="data/validation.jsonl", Body=lines(["held out"]).encode())
    yield url
    server.stop()


@pytest.fixture
def at_s3(s3, monkeypatch):
    import s3fs

    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    for name, value in {"AWS_ENDPOINT_URL": s3, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
                        "AWS_EC2_METADATA_DISABLED": "true", "LMP_HUB_PATIENCE": "0"}.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield s3
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("streaming", [None, True])
@pytest.mark.parametrize(("path", "expected"), [("data/train/a.jsonl", ROWS[:15]), ("data/train/*.jsonl", ROWS), ("data/**", ROWS), ("data", ROWS)])
def test_s3_gives_a_file_a_glob_and_a_folder_with_its_splits(at_s3, tmp_path, path, expected, streaming):
    stage = {"dataset": {"path": f"s3://texts/{path}", "streaming": streaming}, "shuffle": False}
    data = open_stage(tmp_path, {**stage, "validation": 0} if path.startswith("data/train") else stage)
    assert [sample.truth for sample in iter(data.open_samples().next, None)] == expected
    if not path.startswith("data/train"):
        assert [sample.truth for sample in iter(data.open_validation().next, None)] == ["held out"]


def test_s3_has_keys_that_stand_for_folders_or_are_no_files(at_s3, tmp_path):
    import boto3

    client = boto3.client("s3", endpoint_url=at_s3)
    for key, body in (("odd/", ""), ("odd/sub/", ""), ("odd//x.png", "x"), ("odd/a.jsonl", lines(ROWS[:3]))):
        client.put_object(Bucket="texts", Key=key, Body=body.encode())
    for path in ("odd", "odd/*.jsonl", "odd/**"):
        assert truths(opened(f"s3://texts/{path}", tmp_path))[0] == ROWS[:3]
    client.put_object(Bucket="texts", Key="odd/../x.jsonl", Body=b"{}")
    with pytest.raises(UserError, match="no name for a file of this machine"):
        opened("s3://texts/odd", tmp_path)


def test_s3_says_what_is_wrong_in_one_line(at_s3, tmp_path, monkeypatch):
    import s3fs

    for path, says in (("s3://nowhere/a.jsonl", "there is no such bucket, folder or file"), ("s3://nowhere/*.jsonl", "there is no such bucket, folder or file"),
                       ("s3://texts/data/*.csv", "nothing is there"),
                       ("s3://texts/data/none.jsonl", "there is no such bucket, folder or file")):
        with pytest.raises(UserError, match=says) as caught:
            opened(path, tmp_path)
        assert len(caught.value.faults) == 1
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(UserError, match="no credentials are found") as caught:
        opened("s3://texts/data/train/a.jsonl", tmp_path)
    assert "AWS_ACCESS_KEY_ID" in str(caught.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(Unavailable, match="the store does not answer"):
        opened("s3://texts/data/train/a.jsonl", tmp_path)


