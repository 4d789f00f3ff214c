"""Namespaces of the calling process's own."""
import ctypes

CLONE_NEWNS, CLONE_NEWIPC, MS_REC, MS_PRIVATE, MNT_DETACH = 0x00020000, 0x08000000, 1 << 14, 1 << 18, 2
LIBC = ctypes.CDLL(None, use_errno=True)


def _make_private(where, flags=0):
    """Of a mount: what is mounted there from now on is seen in this namespace alone.  False: `where` is not one."""
    return LIBC.mount(b"none", where, None, ctypes.c_ulong(MS_PRIVATE | flags), None) == 0


def mount_shm(flags=0, options=b"mode=1777"):
    """Another /dev/shm, over the one there is: True if it could be mounted."""
    return LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(flags), options) == 0


def unmount_shm():
    """Takes it away again."""
    if LIBC.umount2(b"/dev/shm", MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "umount2")


def own_ipc_and_shm(options=b"mode=1777"):
    """An IPC namespace and a /dev/shm that nobody else uses.  False: they cannot be had; then the process may be in
    namespaces of its own all the same."""
    if LIBC.unshare(CLONE_NEWIPC | CLONE_NEWNS) != 0:
        return False
    # In a chroot, / is no mount.
    everything = _make_private(b"/", MS_REC)
    return (everything or _make_private(b"/dev/shm") or _make_private(b"/dev")) and mount_shm(options=options)


def own_terminals():
    """Pseudo-terminals where the system has none, as in a chroot; the process has a mount namespace of its own then.  False: they
    cannot be had."""
    if LIBC.unshare(CLONE_NEWNS) != 0:
        return False
    everything = _make_private(b"/", MS_REC)
    return ((everything or _make_private(b"/dev")) and
            LIBC.mount(b"devpts", b"/dev/pts", b"devpts", ctypes.c_ulong(0), b"newinstance,ptmxmode=0666,mode=0620") == 0)
