"""Downloading D4RL's files from a local server with faults."""

import dataclasses
import hashlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from offline_gntd.cli import main
from offline_gntd.datasets import DatasetNotFound, catalogue, download
from offline_gntd.errors import UserError

NAME = "hopper-medium-v2"
CONTENT = bytes(range(256)) * 4000
ENTRIES = catalogue.entries()


class Server(ThreadingHTTPServer):
    """Serves CONTENT, or fails according to `behaviour`."""

    behaviour = "serve"
    ranges: list[str | None]

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        behaviour = self.server.behaviour
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        if behaviour == "404" or (behaviour == "404 at the host" and "/copy/" not in self.path):
            self.send_error(404)
            return
        if behaviour == "redirect" and "/elsewhere" not in self.path:
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and behaviour != "no ranges" else 0
        body = CONTENT[start:]
        if behaviour == "wrong":
            body = bytes(len(body))
        if behaviour == "too long":
            body += b"more"
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        if behaviour != "no length":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if behaviour == "hang":
            time.sleep(5)
        if behaviour == "slow":
            for start in range(0, len(body), 100_000):
                self.wfile.write(body[start : start + 100_000])
                time.sleep(0.05)
            return
        self.wfile.write(body[: len(body) // 3] if behaviour in ("truncate", "no length") else body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(download, "HOST", f"http://127.0.0.1:{server.server_port}/{{path}}")
    monkeypatch.setattr(download, "V2_COPY", "http://127.0.0.1:9/{file}")
    entry = dataclasses.replace(
        catalogue.entries()[NAME], bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest()
    )
    monkeypatch.setattr(catalogue, "entries", lambda: {NAME: entry})
    server.entry = entry
    yield server
    server.shutdown()
    server.server_close()


def target():
    return download.folder() / "hopper_medium-v2.hdf5"


def part():
    return target().with_name(target().name + ".part")


def test_file_is_downloaded_verified_and_renamed(server, capsys):
    assert main(["datasets", "fetch", NAME]) == 0
    assert capsys.readouterr().out.strip() == str(target())
    assert target().read_bytes() == CONTENT
    assert not part().exists()
    assert main(["datasets", "fetch", NAME]) == 0
    assert server.ranges == [None]  # it is not fetched twice


@pytest.mark.parametrize("behaviour", ["truncate", "no length"])
def test_truncated_download_is_continued(server, behaviour):
    server.behaviour = behaviour
    with pytest.raises(UserError, match="continues from"):
        download.fetch(NAME)
    have = part().stat().st_size
    assert 0 < have < len(CONTENT)
    assert not target().exists()
    server.behaviour = "serve"
    assert download.fetch(NAME).read_bytes() == CONTENT
    assert server.ranges[-1] == f"bytes={have}-"


def test_host_without_ranges_sends_everything_again(server):
    download.folder().mkdir(parents=True)
    part().write_bytes(CONTENT[:1000])
    server.behaviour = "no ranges"
    assert download.fetch(NAME).read_bytes() == CONTENT


def test_interrupted_download_is_continued(server, monkeypatch):
    blocks = []

    def interrupt(self, n=1):
        blocks.append(n)
        raise KeyboardInterrupt

    monkeypatch.setattr(download.tqdm, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        download.fetch(NAME)
    monkeypatch.setattr(download.tqdm, "update", lambda self, n=1: None)
    assert part().stat().st_size > 0
    assert download.fetch(NAME).read_bytes() == CONTENT
    assert server.ranges[-1].startswith("bytes=")


@pytest.mark.parametrize("behaviour", ["wrong", "too long", "404"])
def test_wrong_content_is_deleted(server, behaviour):
    server.behaviour = behaviour
    with pytest.raises(UserError, match=r"sha256 differs|more than|HTTP 404") as error:
        download.fetch(NAME)
    assert "--from-file" in str(error.value)
    assert str(target()) in str(error.value)
    assert list(download.folder().iterdir()) == []


def test_damaged_part_is_deleted(server):
    download.folder().mkdir(parents=True)
    part().write_bytes(b"damaged")
    with pytest.raises(UserError, match="sha256 differs"):
        download.fetch(NAME)
    assert download.fetch(NAME).read_bytes() == CONTENT


def test_mirrors_are_tried_before_the_host(server, monkeypatch):
    base = download.HOST.removesuffix("{path}")
    monkeypatch.setenv(download.MIRRORS, f"http://127.0.0.1:9/, {base}mirror {base}{{id}}?as={{file}}")
    path = server.entry.path
    assert download.addresses(server.entry) == [
        f"http://127.0.0.1:9/{path}",
        f"{base}mirror/{path}",
        f"{base}hopper-medium-v2?as=hopper_medium-v2.hdf5",
        f"{base}{path}",
        "http://127.0.0.1:9/hopper_medium-v2.hdf5",
    ]
    assert download.fetch(NAME).read_bytes() == CONTENT


def test_copy_of_v2_files_is_tried_when_the_host_fails(server, monkeypatch):
    monkeypatch.setattr(download, "V2_COPY", download.HOST.replace("{path}", "copy/{file}"))
    server.behaviour = "404 at the host"
    assert download.fetch(NAME).read_bytes() == CONTENT
    assert not any("copy" in url for url in download.addresses(ENTRIES["hopper-medium-v0"]))


@pytest.mark.parametrize("behaviour", ["redirect", "slow"])
def test_redirects_and_slow_answers_work(server, behaviour):
    server.behaviour = behaviour
    assert download.fetch(NAME).read_bytes() == CONTENT


def test_files_of_the_d4rl_package_are_used(server, tmp_path):
    path = tmp_path / "d4rl-package" / "hopper_medium-v2.hdf5"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert download.fetch(NAME) == path
    assert server.ranges == []
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DatasetNotFound, match="1,023,999 bytes"):
        download.locate(server.entry)
    assert download.fetch(NAME) == target()


def test_file_downloaded_by_hand(server, tmp_path, capsys):
    file = tmp_path / "downloaded"
    file.write_bytes(CONTENT[:-1])
    assert main(["datasets", "fetch", NAME, "--from-file", str(file)]) == 2
    assert not target().exists()
    file.write_bytes(CONTENT)
    assert main(["datasets", "fetch", NAME, "--from-file", str(file)]) == 0
    assert target().read_bytes() == CONTENT
    assert main(["datasets", "fetch", NAME, "--from-file", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize("fault", ["refused", "hang"])
def test_offline_error_is_one_line_within_ten_seconds(server, monkeypatch, capsys, fault):
    if fault == "refused":
        monkeypatch.setattr(download, "HOST", "http://127.0.0.1:9/{path}")
    else:
        monkeypatch.setattr(download, "PATIENCE", 1.0)
        monkeypatch.setattr(download.urllib.request, "urlopen", lambda *args, **kwargs: time.sleep(4))
    started = time.monotonic()
    assert main(["datasets", "fetch", NAME]) == 2
    assert time.monotonic() - started < 10
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert str(target()) in lines[0]


@pytest.mark.parametrize("name", ["cartpole-replay", "hopper-medium", "nonsense"])
def test_names_that_cannot_be_fetched(name, capsys):
    assert main(["datasets", "fetch", name]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
