"""Prefetching for programs that read with py-lmdb."""
import warnings
from typing import Any, Iterable, Optional, Set

from . import _lmdbio

_warned: Set[str] = set()


def prefetch(txn: Any, keys: Iterable[bytes], database: Optional[str] = None) -> bool:
    """Tells LMDBIO which keys the program will soon look up in this transaction of py-lmdb.

    LMDBIO reads their values, many at a time.  txn.get then returns the values without waiting.  This is only a hint: results
    do not change.  It works best to announce some hundreds of keys at a time, as the program proceeds.  database: the name of
    a named database.

    Returns False if LMDBIO is not active in this process, or does not serve the transaction.  Warns once for each reason.
    """
    if _lmdbio._prefetch(txn, keys, database):
        return True
    module = _lmdbio._unreached()
    if module:
        reason = f"{module} contains an LMDB that LMDBIO does not reach.  docs/faq.md says how to build py-lmdb so that it does"
    elif not _lmdbio.is_active():
        reason = ("LMDBIO is not active in this process, so that py-lmdb uses the original LMDB.  Start the program with "
                  f"`python3 -m lmdbio run -- PROGRAM`, or with LD_PRELOAD={_lmdbio.library()}")
    else:
        reason = (f"{txn!r} is not a transaction that LMDBIO serves: it serves those of environments that are opened with "
                  "readonly=True, unless LMDBIO_DISABLE=1")
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn("lmdbio.prefetch has no effect: " + reason, RuntimeWarning, stacklevel=2)
    return False
