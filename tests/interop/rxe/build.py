"""A Linux guest with Soft-RoCE, made of Debian packages: one kernel, one initramfs.

    python tests/interop/rxe/build.py

Nothing is installed and nothing needs root: apt resolves and fetches the packages in a directory
of its own, and what the guest needs of them goes straight into an initramfs. The guest is kept in
$IBWIRE_CACHE, else $XDG_CACHE_HOME/ibwire, else ~/.cache/ibwire; packages are not. It is kept until
this recipe changes, whatever versions the mirror has meanwhile; `packages` beside it says of which
it was made. The only network it needs is the Debian mirror, $IBWIRE_DEBIAN_MIRROR or else
deb.debian.org, by way of whatever proxy apt is configured for.
"""

import fcntl
import hashlib
import lzma
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

HERE = Path(__file__).parent

SUITE = "bookworm"
"""Debian 12, whose rxe (kernel 6.1, rdma-core 44) the shipped captures are of."""

MIRROR = "http://deb.debian.org/debian"

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

PACKAGES = (
    "linux-image-amd64",
    "busybox-static",
    "dash",
    "iproute2",
    "ethtool",
    "ibverbs-utils",
    "ibverbs-providers",
    "rdmacm-utils",
    "perftest",
    "python3-pyverbs",
)

NOT_NEEDED = (
    # For the boot of an installed Debian; the guest has its own init.
    "initramfs-tools",
    "kmod",
    "linux-base",
    "rdma-core",
    # For the installation of packages.
    "adduser",
    "debconf",
    "libcap2-bin",
)
"""Dependencies that apt takes as installed."""

NEEDED_TOOLS = ("apt-get", "dpkg-deb")

MODULES = (
    # The devices of the guest.
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    # RDMA.
    "rdma_rxe",
    "rdma_ucm",
    "ib_umad",
    "crc32_generic",
    "crc32_pclmul",
    # Faults and VLANs inside the guest.
    "sch_netem",
    "ifb",
    "8021q",
    "dummy",
)
"""Kernel modules of the guest; what they depend on comes with them."""

LEFT_OUT = (
    "boot/System.map",
    "boot/config",
    "etc/init.d",
    "lib/systemd",
    "lib/udev",
    "var",
    "usr/include",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/x86_64-linux-gnu/perl-base",
    "usr/lib/python3.11/ensurepip",
    "usr/lib/python3.11/idlelib",
    "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/pydoc_data",
    "usr/lib/python3.11/test",
    "usr/lib/python3/dist-packages/",
    "usr/lib/systemd",
    "usr/lib/udev",
    "usr/lib/locale",
    "usr/share",
)
"""Beginnings of paths that the guest has no use for."""

KEPT = ("usr/lib/python3/dist-packages/pyverbs",)
"""What is needed of `LEFT_OUT` all the same."""

PROVIDERS = ("etc/libibverbs.d/", "usr/lib/x86_64-linux-gnu/libibverbs/")
"""Drivers of rdma-core; each one that is there costs the start of every program time."""


class BuildError(Exception):
    """The guest cannot be built: one sentence says what is missing."""


class Image(NamedTuple):
    """A guest that QEMU can boot."""

    kernel: Path
    initramfs: Path

    def size(self) -> int:
        """Bytes of both."""
        return sum(path.stat().st_size for path in self)


class Member(NamedTuple):
    """One file, link or directory of the guest."""

    mode: int
    """As in `stat`, with the type of file."""
    content: bytes
    """Of a file; of a symbolic link where it leads."""


TYPE_DIRECTORY, TYPE_FILE, TYPE_LINK = 0o040000, 0o100000, 0o120000

Tree = dict[str, Member]
"""Members by path, without a slash in front."""


def cache_directory() -> Path:
    """Where guests are kept."""
    if named := os.environ.get("IBWIRE_CACHE"):
        return Path(named)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "ibwire"
    return Path.home() / ".cache" / "ibwire"


def cached() -> Image | None:
    """The guest that this recipe makes, where it was made already and is whole."""
    directory = cache_directory() / f"rxe-{_recipe()}"
    image = Image(directory / "vmlinux", directory / "initramfs")
    try:
        whole = (directory / "size").read_text() == str(image.size())
    except OSError:
        return None
    return image if whole else None


def build() -> Image:
    """The guest, from the cache or made now; guests of older recipes are removed.

    Raises `BuildError`.
    """
    cache = cache_directory()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "rxe.lock").open("w") as lock:
            # Of several at once, one makes the guest and the others find it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not cached():
                _build_in(cache)
    except OSError as error:
        raise BuildError(f"{cache} cannot keep it: {error}") from error
    image = cached()
    assert image
    return image


def _build_in(cache: Path) -> None:
    # A killed process held the lock that is now ours.
    for left in cache.glob("making-rxe-*"):
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix="making-rxe-", dir=cache) as work:
        made = Path(work) / "made"
        made.mkdir()
        packages = _download(Path(work))
        _make(packages, made)
        (made / "packages").write_text("".join(f"{package.name}\n" for package in packages))
        # What is cut off later, by a crash of the machine say, is no guest.
        (made / "size").write_text(str(Image(made / "vmlinux", made / "initramfs").size()))
        for old in cache.glob("rxe-*"):
            shutil.rmtree(old)
        made.rename(cache / f"rxe-{_recipe()}")


def _recipe() -> str:
    """Changes whenever another guest would be made."""
    recipe = hashlib.sha256()
    for name in ("build.py", "guest_init.sh"):
        recipe.update((HERE / name).read_bytes())
    return recipe.hexdigest()[:12]


def _download(work: Path) -> list[Path]:
    """`PACKAGES` and what they depend on."""
    for tool in NEEDED_TOOLS:
        if not shutil.which(tool):
            raise BuildError(f"the guest is made of Debian packages, and {tool} is missing")
    if not KEYRING.is_file():
        raise BuildError(f"{KEYRING} is missing (package debian-archive-keyring)")
    mirror = os.environ.get("IBWIRE_DEBIAN_MIRROR", MIRROR)
    (work / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {SUITE} main\n")
    (work / "status").write_text("".join(map(_as_installed, NOT_NEEDED)))
    for name in ("state/lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    options = {
        "Dir::State": work / "state",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "APT::Install-Recommends": "false",
        # Only this user may write to the directory, so apt's own user could not write there.
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    _run([*apt, "--error-on=any", "update"], f"no package lists from {mirror}")
    _run([*apt, "install", "--yes", "--download-only", *PACKAGES], f"no packages from {mirror}")
    return sorted((work / "cache" / "archives").glob("*.deb"))


def _as_installed(package: str) -> str:
    """What the status file of dpkg says of an installed package, newer than any other."""
    fields = {
        "Package": package,
        "Status": "install ok installed",
        "Version": "999",
        "Architecture": "amd64",
        "Multi-Arch": "foreign",
        "Maintainer": "none",
        "Description": "not needed",
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items()) + "\n"


def _run(command: list[str], failure: str) -> None:
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise BuildError(f"{failure}: {run.stderr.strip() or run.stdout.strip()}")


def _make(packages: Iterable[Path], directory: Path) -> None:
    """Kernel and initramfs in the directory."""
    tree: Tree = {}
    modules: dict[str, bytes] = {}
    for package in packages:
        try:
            _unpack(package, tree, modules)
        except tarfile.TarError as error:
            raise BuildError(f"dpkg-deb cannot read {package.name}: {error}") from error
    kernels = [path for path in tree if path.startswith("boot/vmlinuz")]
    if len(kernels) != 1:
        raise BuildError(f"one kernel was expected among the packages, found {kernels}")
    (directory / "vmlinux").write_bytes(_uncompressed(tree.pop(kernels[0]).content))
    _add_modules(tree, modules)
    tree["init"] = Member(TYPE_FILE | 0o755, (HERE / "guest_init.sh").read_bytes())
    for name in ("dev", "proc", "sys", "tmp", "run"):
        tree[name] = Member(TYPE_DIRECTORY | 0o755, b"")
    # Not the shell of busybox: that prefers its own ip and tc to those of iproute2.
    tree["bin/sh"] = Member(TYPE_LINK | 0o777, b"dash")
    # What the kernel starts to load a module.
    tree["sbin/modprobe"] = Member(TYPE_LINK | 0o777, b"/bin/busybox")
    with (directory / "initramfs").open("wb") as file:
        _write_cpio(tree, file)


def _unpack(package: Path, tree: Tree, modules: dict[str, bytes]) -> None:
    """Add what a package holds to the tree; kernel modules apart, by path."""
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as run,
        tarfile.open(fileobj=run.stdout, mode="r|") as archive,
    ):
        for entry in archive:
            path = entry.name.removeprefix("./").rstrip("/")
            if entry.isfile() and path.endswith(".ko"):
                modules[path] = _content(archive, entry)
            elif not _wanted(path):
                continue
            elif entry.isdir():
                tree[path] = Member(TYPE_DIRECTORY | 0o755, b"")
            elif entry.issym():
                tree[path] = Member(TYPE_LINK | 0o777, entry.linkname.encode())
            elif entry.islnk():
                if target := tree.get(entry.linkname.removeprefix("./")):
                    tree[path] = target
            elif entry.isfile():
                # The guest has one user, so special bits mean nothing.
                mode = TYPE_FILE | entry.mode & 0o777
                tree[path] = Member(mode, _content(archive, entry))
    if run.returncode:
        raise BuildError(f"dpkg-deb cannot read {package.name}")


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(entry)
    assert file
    return file.read()


def _wanted(path: str) -> bool:
    if not path or (path.startswith(PROVIDERS) and "rxe" not in path):
        return False
    return path.startswith(KEPT) or not path.startswith(LEFT_OUT)


def _uncompressed(kernel: bytes) -> bytes:
    """The ELF file inside a bzImage; an interpreted processor takes seconds to unpack it.

    Source: Documentation/arch/x86/boot.rst of Linux.
    """
    sectors = kernel[0x1F1]
    offset, length = struct.unpack_from("<II", kernel, 0x248)
    start = 512 * (sectors + 1) + offset
    try:
        # Four bytes of its size follow what is compressed.
        unpacked = lzma.LZMADecompressor().decompress(kernel[start : start + length])
    except lzma.LZMAError as error:
        raise BuildError(f"the kernel is not compressed with xz: {error}") from error
    return unpacked


def _add_modules(tree: Tree, modules: dict[str, bytes]) -> None:
    """`MODULES` with what they depend on, and the lists by which modprobe finds them."""
    paths = {_module_name(path): path for path in modules}
    found: dict[str, list[tuple[str, str]]] = {}
    missing = list(MODULES)
    while missing:
        name = missing.pop()
        if name in found:
            continue
        if name not in paths:
            raise BuildError(f"the kernel has no module {name}")
        found[name] = list(_module_info(modules[paths[name]]))
        missing += _dependencies(found[name])
    dependencies = aliases = ""
    for name, info in sorted(found.items()):
        path = paths[name]
        tree[path] = Member(TYPE_FILE | 0o644, modules[path])
        needed = " ".join(f"/{paths[other]}" for other in _all_dependencies(name, found))
        dependencies += f"/{path}: {needed}\n"
        aliases += "".join(f"alias {value} {name}\n" for key, value in info if key == "alias")
    release = "/".join(paths[MODULES[0]].split("/")[:3])
    tree[f"{release}/modules.dep"] = Member(TYPE_FILE | 0o644, dependencies.encode())
    tree[f"{release}/modules.alias"] = Member(TYPE_FILE | 0o644, aliases.encode())
    for path in list(tree):
        for parent in Path(path).parents:
            tree.setdefault(str(parent), Member(TYPE_DIRECTORY | 0o755, b""))


def _module_name(path: str) -> str:
    return Path(path).stem.replace("-", "_")


def _dependencies(info: Iterable[tuple[str, str]]) -> list[str]:
    listed = ",".join(value for key, value in info if key == "depends")
    return [name.replace("-", "_") for name in listed.split(",") if name]


def _all_dependencies(name: str, found: dict[str, list[tuple[str, str]]]) -> list[str]:
    """What must be loaded before a module; the last one first, as in modules.dep."""
    order: list[str] = []
    for other in _dependencies(found[name]):
        for needed in [other, *_all_dependencies(other, found)]:
            if needed in order:
                order.remove(needed)
            order.append(needed)
    return order


def _module_info(module: bytes) -> Iterator[tuple[str, str]]:
    """Keys and values of the section .modinfo of an ELF file of 64 bits."""
    (offset,) = struct.unpack_from("<Q", module, 0x28)
    size, count, names = struct.unpack_from("<HHH", module, 0x3A)
    # Of a section: name, type, flags, address, offset, size.
    sections = [struct.unpack_from("<IIQQQQ", module, offset + size * n) for n in range(count)]
    for name, _, _, _, start, length in sections:
        if module.startswith(b".modinfo\0", sections[names][4] + name):
            for entry in module[start : start + length].split(b"\0"):
                key, _, value = entry.decode().partition("=")
                yield key, value


def _write_cpio(tree: Tree, file: BinaryIO) -> None:
    """The tree as cpio of the kind that the kernel unpacks (newc), all of it owned by root."""

    def write(number: int, path: str, mode: int, content: bytes) -> None:
        name = path.encode() + b"\0"
        # Number, mode, owner, group, links, time, size, four numbers of devices, length of the
        # name, checksum.
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name
        for part in (head, content):
            file.write(part + bytes(-len(part) % 4))

    # A directory stands before what is in it.
    for number, (path, member) in enumerate(sorted(tree.items())):
        write(number, path, *member)
    write(0, "TRAILER!!!", 0, b"")


def main() -> int:
    """Build the guest and say where it is; the exit status."""
    if image := cached():
        print(f"guest: {image.kernel.parent} (cached)")
        return 0
    begin = time.monotonic()
    try:
        image = build()
    except BuildError as error:
        print(f"no guest: {error}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - begin
    print(f"guest: {image.kernel.parent}, {image.size() / 1e6:.0f} MB, {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
