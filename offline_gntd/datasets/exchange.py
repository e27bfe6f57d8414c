"""Datasets in and out: fetched by name, and converted between D4RL's layout and Minari's."""

import contextlib
import os
import urllib.error
import urllib.request
from pathlib import Path

from offline_gntd.datasets import built, catalogue, conversion, d4rl, download, hdf5, loading, minari_store
from offline_gntd.datasets.file_hash import sha256_of
from offline_gntd.datasets.names import safe
from offline_gntd.errors import UserError, unknown

REMOTES = {"hf": "https://huggingface.co", "gcp": "https://storage.googleapis.com"}  # $MINARI_REMOTE's kinds


def fetch(name: str, from_file: Path | None = None, quiet: bool = False) -> Path:
    """Get a D4RL file or a Minari dataset by its name; where it is then."""
    entry = catalogue.entries().get(name)
    if entry:
        return download.adopt(entry, from_file) if from_file else download.fetch(entry, quiet)
    if built.is_name(name):
        raise UserError(f"{name} is not fetched but built, with: offline-gntd datasets build {name}")
    if not minari_store.is_id(name) or "/" not in name:
        raise unknown("dataset", name, catalogue.entries(), "See: offline-gntd datasets list")
    if from_file:
        raise UserError(f"--from-file takes a D4RL file; unpack {name} in {minari_store.user_root()} instead")
    return minari_store.find(name) or _fetch_minari(name)


def convert(
    source: str | Path,
    to: str,
    env: str | None = None,
    episode_limit: int | None = None,
    replace: bool = False,
) -> str:
    """Write a dataset in the other format; the Minari id or the file that was written."""
    kind = loading.kind_of(source)
    wanted = {"minari": ("d4rl", "file"), "d4rl": ("minari", "built")}
    if kind == "imported":
        raise UserError(f"{source} is imported: have its file write the format it is wanted in")
    if kind == "authors":
        raise UserError(f"{source} cannot be converted: convert takes D4RL files and Minari datasets")
    if kind not in wanted[to]:
        raise UserError(f"{source} is in that format already; convert takes --format minari or d4rl")
    if to == "minari":
        return _to_minari(str(source), kind, env, episode_limit, replace)
    if kind == "built":
        folder, task = built.existing(str(source)), built.task_of(str(source))
    else:
        folder = minari_store.existing(str(source))
        task = minari_store.task_in(folder, env)
    return str(conversion.to_d4rl(folder, safe(str(source)), task, replace))


def _to_minari(source: str, kind: str, env: str | None, episode_limit: int | None, replace: bool) -> str:
    path = download.locate(catalogue.entries()[source]) if kind == "d4rl" else Path(source)
    identity = loading.identify(path, env, episode_limit)
    name = source if kind == "d4rl" else loading.name_of(path, identity)
    about = identity.about(name=name, source=str(path.resolve()), provenance={"sha256": sha256_of(path)})
    with hdf5.reading(path) as columns:
        recording = d4rl.recording(columns, identity.task, str(path), identity.episode_limit)
        return conversion.to_minari(recording, about, replace)


def _fetch_minari(name: str) -> Path:
    """Through Minari itself, into its own folder. Offline it would try for long: that is found out first."""
    host = REMOTES.get(os.environ.get("MINARI_REMOTE", "hf").partition(":")[0])
    by_hand = f"put it in {minari_store.user_root() / name}, or copy it there from a machine that has it"
    try:
        download.within(download.PATIENCE, lambda: _reach(host))
    except Exception as error:
        raise UserError(f"cannot fetch {name}: {host} does not answer ({error}); {by_hand}") from error
    try:
        import minari

        minari.download_dataset(name)
    except Exception as error:  # errors of its own, of its storage and of the network
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"Minari could not fetch {name}: {reason}; {by_hand}") from error
    folder = minari_store.find(name)
    if folder is None:
        raise UserError(f"Minari fetched {name}, but it is not in {minari_store.user_root()}")
    return folder


def _reach(address: str | None) -> None:
    if address is not None:
        with contextlib.suppress(urllib.error.HTTPError):  # an answer of a kind
            urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=download.PATIENCE)
