// Reads the trees of duplicates of a chunk of leaf pages.
#pragma once

#include "lmdbio/base/status.h"
#include "lmdbio/records/index_packer.h"
#include "lmdbio/records/tree_reads.h"

namespace lmdbio::records {

/// Reads all trees in chunk.rows.trees together, level by level.  Sets chunk.dups and chunk.by_tree, and
/// counts chunk.branch_pages.  The records of damaged leaf pages are distributed over these pages if the
/// build is tolerant.  Errors are reported to `state`, as by TreeReads::read().  May throw bad_alloc.
Status read_dup_trees(TreeReads& reads, Chunk& chunk);

}  // namespace lmdbio::records
