"""Whether a place can keep what the store promises: the library, the file system, and whose file it is."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import apsw

from postroom.errors import SettingsInvalid, StoreUnsuitable

OLDEST_LIBRARY = (3, 51, 3)

APPLICATION_ID = 0x506F5374
"""Marks a database file as ours (``PoSt``)."""

# Magic numbers of statfs(2). A write-ahead log needs memory that all its users share, and locks that hold between
# them: a network file system gives neither to two machines, and says so to none.
NETWORK_FILE_SYSTEMS = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x01021997: "9P",
    0x73757245: "Coda",
    0x5346414F: "AFS",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x19830326: "BeeGFS",
    0x013111A8: "IBRIX",
}
FUSE = 0x65735546
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.ntfs", "fuseblk", "fuse.lxcfs", "fuse.gocryptfs"})
"""FUSE says nothing about where the bytes are: these are known to be on this machine."""


def path_of(url: str) -> Path:
    """The path of ``sqlite:///path``: from here with three slashes, from the root with four.

    Raises:
        SettingsInvalid: it is not such a URL.
    """
    prefix = "sqlite:///"
    place = unquote(url.removeprefix(prefix))
    if not url.startswith(prefix) or not place or "?" in place or "\0" in place or place == ":memory:":
        raise SettingsInvalid(
            f"{url!r} names no file: write sqlite:///name.db or sqlite:////from/the/root.db"
        )
    return Path(place).absolute()


def library_version() -> str:
    """The version of the SQLite library that the store uses: apsw's own, not Python's."""
    return apsw.sqlite_lib_version()


def check_library(version: str | None = None) -> None:
    """Refuse a SQLite library whose write-ahead log can be damaged by two processes.

    Raises:
        StoreUnsuitable: it is older than 3.51.3.
    """
    version = apsw.sqlite_lib_version() if version is None else version
    if tuple(int(part) for part in version.split(".")[:3]) < OLDEST_LIBRARY:
        raise StoreUnsuitable(
            f"SQLite {version} can damage a file that several processes write (fixed in 3.51.3): "
            "install a newer apsw, whose wheels carry their own SQLite"
        )


def check_place(path: Path, *, file_system: Callable[[Path], str | None] | None = None) -> None:
    """Refuse a file whose folder is missing or lies on a network file system.

    Raises:
        StoreUnsuitable: the message says why and what to do.
    """
    folder = path.parent
    if not folder.is_dir():
        raise StoreUnsuitable(f"the folder {folder} does not exist: create it, or name another file")
    if path.is_dir():
        raise StoreUnsuitable(f"{path} is a folder: name a file in it")
    name = (network_file_system if file_system is None else file_system)(folder)
    if name is not None:
        raise StoreUnsuitable(
            f"{folder} lies on {name}, a network file system, where SQLite's locks do not hold between machines: "
            "put the file on a local disk, or reach one service on it over HTTP"
        )


def network_file_system(folder: Path) -> str | None:
    """The name of the network file system that a folder lies on; None: it is local, or the system does not tell."""
    magic = _magic(folder)
    if magic is None:
        return None
    if magic == FUSE:
        kind = _mounted_as(folder)
        return None if kind in LOCAL_FUSE else kind or "FUSE"
    return NETWORK_FILE_SYSTEMS.get(magic)


def file_system(folder: Path) -> str | None:
    """The type of the file system that a folder lies on, such as ext4; None where the system does not tell."""
    return _mounted_as(folder.absolute())


def _magic(folder: Path) -> int | None:
    """The first field of ``struct statfs``; only Linux has one that names the file system."""
    if sys.platform != "linux":
        return None
    buffer = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(folder), buffer) != 0:
        return None
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def _mounted_as(folder: Path) -> str | None:
    """The type of the mount that a folder lies in, as /proc/self/mounts has it."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    inside = [m for m in mounts if len(m) > 2 and folder.is_relative_to(m[1].replace("\\040", " "))]
    return max(inside, key=lambda mount: len(mount[1]))[2] if inside else None
