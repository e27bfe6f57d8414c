"""Find D4RL's files on this machine, and download D4RL files and Minari datasets.

A D4RL file is downloaded to a .part file, which a later attempt continues. It is renamed when its size and
sha256 match the catalogue.
"""

import contextlib
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from offline_gntd.datasets import built_datasets, catalogue, minari_store, ogbench_files
from offline_gntd.datasets.catalogue import Entry
from offline_gntd.datasets.dataset import DatasetNotFound
from offline_gntd.errors import UserError, first_line, unknown
from offline_gntd.files import check_path_length, home, sha256_of, writing

HOST = "http://rail.eecs.berkeley.edu/{path}"  # D4RL's own
V2_COPY = "https://huggingface.co/datasets/imone/D4RL/resolve/main/{file}"  # a copy of the v2 files
MINARI_HOSTS = {"hf": "https://huggingface.co", "gcp": "https://storage.googleapis.com"}  # by $MINARI_REMOTE
MIRRORS = "OFFLINE_GNTD_D4RL_MIRRORS"  # URLs tried first, separated by spaces or commas
PATIENCE = 8.0  # seconds to wait for a first answer, for all hosts together
STALL = 30.0  # seconds without a byte after which a host is given up
BLOCK = 1 << 18  # bytes


class DownloadFailed(Exception):
    """One host did not deliver the file."""


def fetch(name: str, from_file: Path | None = None) -> Path:
    """Get a D4RL file or a Minari dataset by its name; returns its path.

    from_file  a D4RL file that was downloaded by hand
    """
    check_path_length(name)
    entry = catalogue.entries().get(name)
    if entry:
        return adopt(entry, from_file) if from_file else fetch_d4rl(entry)
    if built_datasets.is_name(name):
        raise UserError(f"{name} cannot be fetched; build it with: offline-gntd datasets build {name}")
    if ogbench_files.is_name(name):
        if from_file:
            target = ogbench_files.folders()[0]
            raise UserError(f"--from-file takes a D4RL file; copy {from_file} to {target} instead")
        return ogbench_files.locate(name)  # its error names the address
    if not minari_store.is_id(name) or "/" not in name:
        raise unknown("dataset", name, catalogue.entries(), "See: offline-gntd datasets list")
    if from_file:
        raise UserError(
            f"--from-file takes a D4RL file; unpack {name} into {minari_store.user_root()} instead"
        )
    return minari_store.find(name) or _fetch_minari(name)


def folder() -> Path:
    return home() / "datasets" / "d4rl"


def places(entry: Entry) -> list[Path]:
    """Where a D4RL file may be: in this package's folder, or in the d4rl package's."""
    d4rl_folder = os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets"
    return [folder() / entry.file_name, Path(d4rl_folder) / entry.file_name]


def is_here(entry: Entry) -> bool:
    """Whether a file with the right name and size exists; `locate` also checks its sha256."""
    return any(path.is_file() and path.stat().st_size == entry.bytes for path in places(entry))


def locate(entry: Entry) -> Path:
    """The path of the published file on this machine; raises DatasetNotFound."""
    command, wrong = f"offline-gntd datasets fetch {entry.id}", []
    for path in places(entry):
        if path.is_file():
            fault = fault_of(path, entry)
            if fault is None:
                return path
            wrong.append(f"{path} {fault}")
    if wrong:
        raise DatasetNotFound(
            f"{'; '.join(wrong)}. Open this file by its path, or download the published one with: {command}"
        )
    raise DatasetNotFound(f"{entry.id} is not on this machine; download it with: {command}")


def fault_of(path: Path, entry: Entry) -> str | None:
    """Why a file is not the published one, or None."""
    size = path.stat().st_size
    if size != entry.bytes:
        return f"is not the published {entry.id}: it has {size:,} bytes, not {entry.bytes:,}"
    return None if sha256_of(path) == entry.sha256 else f"is not the published {entry.id}: its sha256 differs"


def adopt(entry: Entry, file: Path) -> Path:
    """Copy a file that was downloaded by hand to this package's folder, if it is the published one."""
    check_path_length(file)
    if not file.is_file():
        raise UserError(f"there is no file {file}")
    fault = fault_of(file, entry)
    if fault:
        raise UserError(f"{file} {fault}")
    target = folder() / entry.file_name
    if file.resolve() != target.resolve():
        with writing(target) as temporary:
            shutil.copyfile(file, temporary)
    return target


def fetch_d4rl(entry: Entry) -> Path:
    """The path of the published file; downloads it if it is not on this machine."""
    try:
        return locate(entry)
    except DatasetNotFound:
        pass
    target = folder() / entry.file_name
    part = target.with_name(target.name + ".part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {part.parent}: {first_line(error)}") from error
    faults = []
    deadline = time.monotonic() + PATIENCE
    for url in addresses(entry):
        held = part.stat().st_size if part.exists() else 0
        try:
            _download(url, part, entry, deadline)
            part.replace(target)
            return target
        except DownloadFailed as error:
            faults.append(f"{url}: {error}")
            if part.exists() and part.stat().st_size > held:
                deadline = time.monotonic() + PATIENCE  # this host answered: the next has the full time
        except OSError as error:
            raise UserError(f"cannot write {part}: {first_line(error)}") from error
    raise UserError(
        f"cannot download {entry.id} ({'; '.join(faults)}). Try again later, set {MIRRORS}, or download "
        f"{address(HOST, entry)} ({entry.bytes:,} bytes) by other means to {target}, or run: offline-gntd "
        f"datasets fetch {entry.id} --from-file FILE"
    )


def addresses(entry: Entry) -> list[str]:
    """The URLs of a file in the order to try: the user's mirrors, D4RL's host, and the copy of v2 files.

    A mirror is a template with {id}, {file} or {path}, or a base URL to which D4RL's path is appended.
    """
    mirrors = os.environ.get(MIRRORS, "").replace(",", " ").split()
    copies = [V2_COPY] if entry.version == "v2" else []
    return [address(template, entry) for template in (*mirrors, HOST, *copies)]


def address(template: str, entry: Entry) -> str:
    parts = {"{id}": entry.id, "{file}": entry.file_name, "{path}": entry.path}
    if not any(name in template for name in parts):
        template = template.rstrip("/") + "/{path}"
    for name, value in parts.items():
        template = template.replace(name, value)
    return template


def _download(url: str, part: Path, entry: Entry, deadline: float) -> None:
    """Complete the .part file from one URL and verify it; raises DownloadFailed."""
    if part.exists() and part.stat().st_size > entry.bytes:
        part.unlink()
    have = part.stat().st_size if part.exists() else 0
    if have < entry.bytes:
        request = urllib.request.Request(url, headers={"User-Agent": "offline-gntd"})
        if have:
            request.add_header("Range", f"bytes={have}-")
        with _answer(request, deadline) as answer:
            sent = answer.headers.get("Content-Range", "")
            if have and not (answer.status == 206 and sent.startswith(f"bytes {have}-")):
                have = 0  # this host sends everything again
            _receive(answer, part, have, entry)
    size = part.stat().st_size
    if size < entry.bytes:
        raise DownloadFailed(
            f"the connection ended after {size:,} of {entry.bytes:,} bytes; the next attempt continues from "
            "there"
        )
    fault = fault_of(part, entry)
    if fault:
        part.unlink()
        raise DownloadFailed(f"the downloaded file {fault}")


def _receive(answer: Any, part: Path, have: int, entry: Entry) -> None:
    with (
        part.open("r+b" if have else "wb") as file,
        tqdm(total=entry.bytes, initial=have, desc=entry.id, unit="B", unit_scale=True) as bar,
    ):
        file.seek(have)
        while True:
            try:
                block = answer.read(BLOCK)
            except Exception as error:  # http.client raises other errors than OSError too
                raise DownloadFailed(
                    f"the connection broke: {_reason(error)}; the next attempt continues from there"
                ) from error
            if not block:
                return
            file.write(block)
            have += len(block)
            bar.update(len(block))
            if have > entry.bytes:
                break
    part.unlink()
    raise DownloadFailed(f"the host sent more than {entry.bytes:,} bytes")


def _answer(request: urllib.request.Request, deadline: float) -> Any:
    """The open response to a request; raises DownloadFailed at the deadline."""
    try:
        return within(deadline - time.monotonic(), lambda: urllib.request.urlopen(request, timeout=STALL))
    except urllib.error.HTTPError as error:
        raise DownloadFailed(f"HTTP {error.code} {error.reason}") from error
    except Exception as error:
        raise DownloadFailed(_reason(error)) from error


def _fetch_minari(name: str) -> Path:
    """Download with Minari into its folder. The host is tried first: offline, Minari retries for 23 s."""
    host = MINARI_HOSTS.get(os.environ.get("MINARI_REMOTE", "hf").partition(":")[0])
    by_hand = f"copy it from another machine to {minari_store.user_root() / name}"
    try:
        within(PATIENCE, lambda: _reach(host))
    except Exception as error:
        raise UserError(f"cannot fetch {name}: {host} does not answer ({error}); {by_hand}") from error
    try:
        minari_store.download(name)
    except Exception as error:  # errors of Minari, of its storage and of the network
        raise UserError(f"Minari cannot fetch {name}: {first_line(error)}; {by_hand}") from error
    folder = minari_store.find(name)
    if folder is None:
        raise UserError(f"Minari fetched {name}, but it is not in {minari_store.user_root()}")
    return folder


def _reach(address: str | None) -> None:
    if address is not None:
        with contextlib.suppress(urllib.error.HTTPError):  # any answer will do
            urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PATIENCE)


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """The result of `work`; raises TimeoutError if it takes longer, for example in a DNS lookup."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(max(seconds, 0.5))
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError("no answer")
    return results[0]


def _reason(error: BaseException) -> str:
    return first_line(getattr(error, "reason", error))  # the reason of a URLError is an OSError or a text
