// Nothing stays mounted behind a process that was killed.
#pragma once

#include <string>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio::slowfs {

/// Starts a process that waits for this one to end, by whatever means, and then detaches what is still
/// mounted on `mountpoint` with source `fsname`.  It is no child of ours, in a session of its own, and keeps
/// no descriptor open, so that whoever kills this process and its children, or waits for the end of its
/// output, is not concerned.  Call with one thread.  The result is its lifeline: keep it open.  None: no
/// process to be had.
UniqueFd start_guard(const std::string& mountpoint, const std::string& fsname);

/// Detaches it if it is still mounted: libfuse does not say whether fusermount3 has unmounted it.  False: it
/// still is.
bool detach(const std::string& mountpoint, const std::string& fsname);

/// Whether something with source `fsname` is mounted here.
bool is_mounted(const std::string& fsname);

}  // namespace lmdbio::slowfs
