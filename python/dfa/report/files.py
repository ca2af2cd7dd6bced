"""Output files, each complete or not there at all."""

import errno
import io
import os
import pathlib
import secrets
import stat
import sys

from matplotlib.backends.backend_pdf import PdfPages

from dfa.report.draw import figure_of

_NO_DATE = {"CreationDate": None}  # the same input gives the same bytes
_MOST_LINKS = 40  # of the kernel


def _descriptor(path):
    """N of /dev/fd/N, /dev/stdout and the like, where the path leads to an open descriptor of ours."""
    for _ in range(_MOST_LINKS):
        if path.name.isdecimal() and os.path.realpath(path.parent) == os.path.realpath("/proc/self/fd"):
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / os.readlink(path)
    return None


def _pour(handle, data):
    with os.fdopen(handle, "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest):]


def _in_place(path, data, old):
    """Keeps the file itself, its names and its owner; a full disk is found before the old text goes."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if len(data) > old.st_size:
            try:
                os.posix_fallocate(handle, 0, len(data))
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    os.ftruncate(handle, old.st_size)
                    raise
        _pour(os.dup(handle), data)
        os.ftruncate(handle, len(data))
        os.fsync(handle)
    finally:
        os.close(handle)


def _beside(path, mode):
    """A new file beside `path`: its descriptor and its name."""
    while True:
        name = path.parent / f"{path.name[:200]}.{secrets.randbelow(10**9)}"
        try:
            return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), name
        except FileExistsError:
            continue


def _become(handle, old):
    now = os.fstat(handle)
    if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
        os.fchown(handle, old.st_uid, old.st_gid)
    os.fchmod(handle, stat.S_IMODE(old.st_mode))


def _replace(path, data, old):
    """Renames a new file over a regular one, or over nothing."""
    handle, temporary = _beside(path, 0o600 if old else 0o666)
    try:
        try:
            if old:
                _become(handle, old)
            _pour(os.dup(handle), data)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_atomically(path, data):
    """Puts the bytes where the path leads, as the `dfa` program does: an older file survives a full disk
    and keeps its mode and owner, a link stays and its target is written, a device, a pipe or a descriptor
    is written to. A file with several names, of an owner we cannot give, or in a folder where nothing can
    be renamed is written in place. OSError names the path."""
    path = pathlib.Path(path)
    descriptor = _descriptor(path)
    if descriptor is not None:
        sys.stdout.flush()
        _pour(os.dup(descriptor), data)
        return
    try:
        old = path.stat()
    except FileNotFoundError:
        old = None
    if old and not stat.S_ISREG(old.st_mode):
        _pour(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), data)  # of a folder: IsADirectoryError
        return
    target = pathlib.Path(os.path.realpath(path))
    if old and not os.access(path, os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if old and old.st_nlink > 1:
        _in_place(target, data, old)
        return
    try:
        _replace(target, data, old)
    except OSError as error:
        if not old or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY):
            raise
        _in_place(target, data, old)


def write_figures(charts, folder):
    """NAME.png for each chart, figures.pdf with all, three_panel.pdf. Returns the file names."""
    names, pages = [], io.BytesIO()
    with PdfPages(pages, metadata=_NO_DATE) as book:
        for chart in charts:
            figure = figure_of(chart)
            image = io.BytesIO()
            figure.savefig(image, format="png", dpi=150, metadata={"Software": None})
            write_atomically(folder / f"{chart.name}.png", image.getvalue())
            names.append(f"{chart.name}.png")
            book.savefig(figure)
            if chart.name == "three_panel":
                page = io.BytesIO()
                figure.savefig(page, format="pdf", metadata=_NO_DATE)
                write_atomically(folder / "three_panel.pdf", page.getvalue())
                names.append("three_panel.pdf")
    write_atomically(folder / "figures.pdf", pages.getvalue())
    return names + ["figures.pdf"]
