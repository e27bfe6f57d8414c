"""Locks: one owner at a time; a dead owner is detected on this and on other machines, with any clock."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest

from offline_gntd import lock
from offline_gntd.lock import Lock, Locked, Watch


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT", 0.05)
    monkeypatch.setattr(lock, "TIMEOUT", 0.5)


def leave(folder, number=0, **owner):
    """Write the lock of another owner."""
    folder.mkdir(exist_ok=True)
    path = folder / f"lock-{number}"
    path.write_text(json.dumps(owner))
    return path


def test_one_owner_at_a_time(home):
    folder = home / "run"
    with Lock([folder]):
        assert Watch([folder]).is_locked()
        assert lock.owner(folder)["process"] == os.getpid()
        with pytest.raises(Locked), Lock([folder]):
            pass
        assert lock.owner(folder) is not None  # the refused process removed no lock
    assert not list(folder.iterdir())
    with Lock([folder]):
        pass


def test_all_folders_or_none(home):
    one, two = home / "one", home / "two"
    with Lock([two]), pytest.raises(Locked), Lock([one, two]):
        pass
    assert not list(one.iterdir())


def test_the_lock_of_a_killed_process_is_free_at_once(home):
    folder = home / "run"
    code = (
        "import sys, time, pathlib; from offline_gntd.lock import Lock\n"
        "with Lock([pathlib.Path(sys.argv[1])]): print('held', flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"held\n"
    with pytest.raises(Locked), Lock([folder]):
        pass
    owner.kill()  # it is a zombie until `wait`, and holds no lock
    deadline = time.monotonic() + 5
    while Watch([folder]).is_locked() and time.monotonic() < deadline:
        time.sleep(0.01)
    with Lock([folder]):
        assert [path.name for path in folder.iterdir()] == ["lock-1"]
    owner.wait()


def test_a_reused_process_number_is_another_process(home):
    leave(home / "run", machine=lock.machine(), process=os.getpid(), start_time="1")
    assert lock.owner(home / "run") is None
    with Lock([home / "run"]):
        pass


@pytest.mark.parametrize(
    "clock", [0, 4_000_000_000]
)  # the heartbeat's time, far behind and far ahead of ours
def test_an_owner_on_another_machine_without_heartbeats_is_dead(home, impatient, clock):
    path = leave(home / "run", machine="another", host="node7", process=1, start_time="1")
    os.utime(path, (clock, clock))
    watch = Watch([home / "run"])
    assert watch.is_locked()
    time.sleep(0.6)
    assert not watch.is_locked()
    start = time.monotonic()
    with Lock([home / "run"]):
        assert time.monotonic() - start >= 0.5  # it was watched
        assert not path.exists()


@pytest.mark.parametrize("direction", [1, -1])
def test_an_owner_on_another_machine_is_alive_while_its_heartbeat_changes(home, impatient, direction):
    path = leave(home / "run", machine="another", host="node7", process=1, start_time="1")
    over = threading.Event()

    def beat():
        when = 2_000_000_000
        while not over.wait(0.05):
            when += direction * 1000
            os.utime(path, (when, when))

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        watch, deadline = Watch([home / "run"]), time.monotonic() + 1.2
        while time.monotonic() < deadline:
            assert watch.is_locked()
            time.sleep(0.1)
        with pytest.raises(Locked), Lock([home / "run"]):
            pass
    finally:
        over.set()
        heart.join()


def test_an_owner_notices_that_it_lost_its_lock(home, impatient):
    with Lock([home / "run"]) as mine:
        mine.check()
        leave(home / "run", number=1, machine="another", host="node7", process=1, start_time="1")
        deadline = time.monotonic() + 5
        while not mine.lost and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(Locked):
            mine.check()
    assert (home / "run/lock-1").exists()


def test_an_owner_notices_that_another_owner_has_its_number(home, impatient):
    """Another machine took over as lock-1 and ended; a third one began as lock-0 again."""
    with Lock([home / "run"]) as mine:
        leave(home / "run", machine="a third", host="node8", process=1, start_time="1")
        deadline = time.monotonic() + 5
        while not mine.lost and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(Locked):
            mine.check()
    assert (home / "run/lock-0").exists()


def contend(folder, barrier, winners):
    barrier.wait()
    try:
        Lock([folder]).acquire()
        winners.put(os.getpid())
    except Locked:
        winners.put(None)
    barrier.wait()  # every process lives until all have tried


@pytest.mark.parametrize("dead_owner", [False, True])
def test_one_of_several_competing_processes_gets_the_lock(home, dead_owner):
    context = multiprocessing.get_context("fork")
    for attempt in range(4):
        folder = home / f"run-{attempt}"
        if dead_owner:
            leave(folder, number=3, machine=lock.machine(), process=os.getpid(), start_time="1")
        barrier, winners = context.Barrier(6), context.Queue()
        tries = [context.Process(target=contend, args=(folder, barrier, winners)) for _ in range(6)]
        for process in tries:
            process.start()
        found = [winners.get(timeout=60) for _ in tries]
        for process in tries:
            process.join()
        assert sum(winner is not None for winner in found) == 1
