// Reads the trees of duplicates of a chunk of leaf pages.
#pragma once

#include "lmdbio/base/status.h"
#include "lmdbio/records/index_packer.h"
#include "lmdbio/records/tree_reads.h"

namespace lmdbio::records {

/// Reads all trees in chunk.rows.trees together, level by level.  Sets chunk.dups and chunk.by_tree, and
/// counts chunk.branch_pages.  If the build is tolerant, distributes the records of damaged leaf pages over
/// these pages.  Reports errors to the BuildState, like TreeReads::read().  May throw bad_alloc.
Status read_dup_trees(TreeReads& reads, Chunk& chunk);

}  // namespace lmdbio::records
