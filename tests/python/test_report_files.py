"""Files of a report go where their path leads."""

import os
import pathlib
import stat
import threading

import pytest

from dfa.report.files import write_atomically


def test_a_link_stays_and_its_target_keeps_its_mode(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"old")
    target.chmod(0o600)
    (tmp_path / "inner").symlink_to("target")
    (tmp_path / "outer").symlink_to(tmp_path / "inner")
    (tmp_path / "dangling").symlink_to("made")
    write_atomically(tmp_path / "outer", b"new")
    write_atomically(tmp_path / "dangling", b"fresh")
    assert all((tmp_path / name).is_symlink() for name in ("inner", "outer", "dangling"))
    assert target.read_bytes() == b"new" and stat.S_IMODE(target.stat().st_mode) == 0o600
    assert (tmp_path / "made").read_bytes() == b"fresh"


def test_a_new_file_has_the_mode_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_every_name_of_a_file_shows_the_new_text(tmp_path):
    (tmp_path / "a").write_bytes(b"an old and longer text")
    os.link(tmp_path / "a", tmp_path / "b")
    write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "b").read_bytes() == b"new"


def test_devices_pipes_and_descriptors_are_written_to(tmp_path):
    write_atomically("/dev/null", b"gone")
    assert pathlib.Path("/dev/null").is_char_device()
    os.mkfifo(tmp_path / "fifo")
    heard = []
    reader = threading.Thread(target=lambda: heard.append((tmp_path / "fifo").read_bytes()))
    reader.start()
    write_atomically(tmp_path / "fifo", b"told")
    reader.join()
    assert heard == [b"told"] and (tmp_path / "fifo").is_fifo()
    with open(tmp_path / "log", "wb", buffering=0) as log:
        log.write(b"one ")
        write_atomically(f"/dev/fd/{log.fileno()}", b"two ")
        log.write(b"three")
    assert (tmp_path / "log").read_bytes() == b"one two three"


def test_what_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "none/x", tmp_path / "loop", "/dev/full"):
        with pytest.raises(OSError):
            write_atomically(path, b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]
