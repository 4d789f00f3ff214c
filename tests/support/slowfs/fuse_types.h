// What headers need of libfuse, which may be missing where they are checked.
#pragma once

#include <cstdint>

struct fuse_conn_info;
struct fuse_entry_param;
struct fuse_file_info;
struct fuse_forget_data;
struct fuse_lowlevel_ops;
struct fuse_req;

namespace lmdbio::slowfs {

using NodeId = std::uint64_t;  // fuse_ino_t
inline constexpr NodeId kRootId = 1;

}  // namespace lmdbio::slowfs
