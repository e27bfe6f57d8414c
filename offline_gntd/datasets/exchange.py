"""`datasets fetch` and `datasets convert`: D4RL files and Minari datasets, by name."""

import contextlib
import os
import urllib.error
import urllib.request
from pathlib import Path

from offline_gntd.datasets import built_datasets, catalogue, conversion, d4rl, download, loading, minari_store
from offline_gntd.errors import UserError, first_line, unknown
from offline_gntd.files import check_path_length, safe_name

REMOTES = {"hf": "https://huggingface.co", "gcp": "https://storage.googleapis.com"}  # by $MINARI_REMOTE


def fetch(name: str, from_file: Path | None = None, quiet: bool = False) -> Path:
    """Get a D4RL file or a Minari dataset by its name; returns its path.

    from_file  a D4RL file that was downloaded by hand
    """
    check_path_length(name)
    entry = catalogue.entries().get(name)
    if entry:
        return download.adopt(entry, from_file) if from_file else download.fetch(entry, quiet)
    if built_datasets.is_name(name):
        raise UserError(f"{name} cannot be fetched; build it with: offline-gntd datasets build {name}")
    if not minari_store.is_id(name) or "/" not in name:
        raise unknown("dataset", name, catalogue.entries(), "See: offline-gntd datasets list")
    if from_file:
        raise UserError(
            f"--from-file takes a D4RL file; unpack {name} into {minari_store.user_root()} instead"
        )
    return minari_store.find(name) or _fetch_minari(name)


def _fetch_minari(name: str) -> Path:
    """Download with Minari into its folder. The host is tried first: offline, Minari retries for 23 s."""
    host = REMOTES.get(os.environ.get("MINARI_REMOTE", "hf").partition(":")[0])
    by_hand = f"copy it from another machine to {minari_store.user_root() / name}"
    try:
        download.within(download.PATIENCE, lambda: _reach(host))
    except Exception as error:
        raise UserError(f"cannot fetch {name}: {host} does not answer ({error}); {by_hand}") from error
    try:
        import minari

        minari.download_dataset(name)
    except Exception as error:  # errors of Minari, of its storage and of the network
        raise UserError(f"Minari cannot fetch {name}: {first_line(error)}; {by_hand}") from error
    folder = minari_store.find(name)
    if folder is None:
        raise UserError(f"Minari fetched {name}, but it is not in {minari_store.user_root()}")
    return folder


def _reach(address: str | None) -> None:
    if address is not None:
        with contextlib.suppress(urllib.error.HTTPError):  # any answer will do
            urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=download.PATIENCE)


def convert(
    source: str | Path,
    to: str,
    env: str | None = None,
    episode_limit: int | None = None,
    replace: bool = False,
) -> str:
    """Write a dataset in the other format; returns the Minari id or the path that was written."""
    kind = loading.kind_of(source)
    if kind in ("imported", "authors"):
        raise UserError(f"{source} cannot be converted: convert takes D4RL files and Minari datasets")
    other = "minari" if kind in ("d4rl", "file") else "d4rl"
    if to != other:
        raise UserError(f"{source} already has the format {to}; give --format {other}")
    if to == "minari":
        return _to_minari(str(source), kind, env, episode_limit, replace)
    if kind == "built":
        folder, task = built_datasets.existing(str(source)), built_datasets.task_of(str(source))
    else:
        folder = minari_store.existing(str(source))
        task = minari_store.task_in(folder, env)
    return str(conversion.to_d4rl(folder, safe_name(str(source)), task, replace))


def _to_minari(source: str, kind: str, env: str | None, episode_limit: int | None, replace: bool) -> str:
    path = download.locate(catalogue.entries()[source]) if kind == "d4rl" else Path(source)
    identity = d4rl.identify(path, env, episode_limit)
    name = source if kind == "d4rl" else loading.file_name(path, identity)
    info = identity.info(name=name, source=str(path.resolve()), provenance={"sha256": identity.sha256})
    with identity.reading(path) as recording:
        return conversion.to_minari(recording, info, replace)
