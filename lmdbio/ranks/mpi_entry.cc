// Implements lmdbio/mpi.h over functions of liblmdbio.so.
#include <lmdbio/mpi.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "lmdbio/ranks/mpi_network.h"
#include "lmdbio/ranks/team_functions.h"

using lmdbio::ranks::MpiNetwork;
using lmdbio::ranks::TeamFunctions;
using lmdbio::ranks::TeamOptions;

struct lmdbio_mpi {
  void* team = nullptr;
  MpiNetwork* network = nullptr;  ///< owned by the team
  int keyval = MPI_KEYVAL_INVALID;
  pid_t pid = ::getpid();
};

namespace {

const TeamFunctions* functions() noexcept {
  static const TeamFunctions* const all = lmdbio_team_functions(LMDBIO_VERSION);
  return all;
}

int fail(int code, const char* text) noexcept {
  if (functions() != nullptr) functions()->set_error(text);
  return code;
}

int fail_mpi(const char* call, int rc) noexcept {
  char text[MPI_MAX_ERROR_STRING + 64] = "", why[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  (void)MPI_Error_string(rc, why, &length);
  (void)std::snprintf(text, sizeof text, "%s: %s", call, why);
  return fail(EIO, text);
}

/// Copies the options.  The program may have been compiled with another version of the header.  Fields that
/// are missing in it become 0, and unknown fields must be 0.
bool read_options(const lmdbio_mpi_options& given, lmdbio_mpi_options& out) noexcept {
  constexpr std::size_t kMost = 4096;
  if (given.size < sizeof given.size || given.size > kMost) return false;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&given);
  for (std::size_t i = sizeof out; i < given.size; ++i)
    if (bytes[i] != 0) return false;
  std::memcpy(&out, &given, given.size < sizeof out ? given.size : sizeof out);
  return true;
}

bool mpi_runs() noexcept {
  int begun = 0, ended = 0;
  return MPI_Initialized(&begun) == MPI_SUCCESS && begun != 0 && MPI_Finalized(&ended) == MPI_SUCCESS &&
         ended == 0;
}

/// MPI_Finalize calls this at its start, when it deletes the attributes of MPI_COMM_SELF.
int at_finalize(MPI_Comm, int, void* value, void*) noexcept {
  auto* const mpi = static_cast<lmdbio_mpi*>(value);
  if (::getpid() != mpi->pid) return MPI_SUCCESS;
  (void)functions()->close(mpi->team);
  mpi->network->free();
  return MPI_SUCCESS;  // the program may still close streams and readers, and call lmdbio_mpi_finalize
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int lmdbio_mpi_init(MPI_Comm comm, const lmdbio_mpi_options* given,
                                                           lmdbio_mpi** out) {
  if (functions() == nullptr) return ENOTSUP;
  if (out == nullptr) return fail(EINVAL, "lmdbio_mpi_init: null argument");
  if (!mpi_runs()) return fail(EINVAL, "lmdbio_mpi_init: MPI is not initialized");
  lmdbio_mpi_options options{};
  if (given != nullptr) {
    if (!read_options(*given, options))
      return fail(EINVAL, "lmdbio_mpi_options: size is not valid, or an unknown field is not 0");
  }
  int inter = 0;
  if (MPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter != 0)
    return fail(EINVAL, "lmdbio_mpi_init: an intercommunicator");
  TeamOptions team;
  if (options.readers_per_node != 0) team.readers_per_node = options.readers_per_node;
  if (options.timeout != 0) team.timeout_seconds = options.timeout;
  team.stagger_group = options.stagger_group;
  if (options.stagger_reads != 0) team.stagger_reads = options.stagger_reads;
  team.own_thread = options.no_thread == 0;
  try {
    auto made = std::make_unique<lmdbio_mpi>();
    std::unique_ptr<MpiNetwork> network;
    constexpr std::int64_t kSecond = 1'000'000'000;
    if (const int rc = MpiNetwork::make(comm, kSecond * team.timeout_seconds, network); rc != MPI_SUCCESS)
      return fail_mpi("lmdbio_mpi_init", rc);
    if (network == nullptr) {
      char text[128];
      (void)std::snprintf(text, sizeof text,
                          "lmdbio_mpi_init: not all ranks of the communicator called it within %u s",
                          team.timeout_seconds);
      return fail(ETIMEDOUT, text);
    }
    made->network = network.get();
    if (const int rc = functions()->init(network.release(), team, &made->team); rc != 0) return rc;
    int rc = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &made->keyval, nullptr);
    if (rc == MPI_SUCCESS) rc = MPI_Comm_set_attr(MPI_COMM_SELF, made->keyval, made.get());
    if (rc != MPI_SUCCESS) return fail_mpi("lmdbio_mpi_init", rc);
    *out = made.release();
    return 0;
  } catch (const std::bad_alloc&) {
    return fail(ENOMEM, "lmdbio_mpi_init: out of memory");
  }
}

__attribute__((visibility("default"))) int lmdbio_mpi_world(lmdbio_mpi** out, int* rank, int* ranks) {
  static std::mutex mutex;
  static lmdbio_mpi* world = nullptr;
  if (functions() == nullptr) return ENOTSUP;
  if (out == nullptr || rank == nullptr || ranks == nullptr)
    return fail(EINVAL, "lmdbio_mpi_world: null argument");
  if (!functions()->together()) return fail(ENOTSUP, "lmdbio_mpi_world: LMDBIO_MPI is not 1");
  int level = MPI_THREAD_SINGLE;
  if (!mpi_runs() || MPI_Query_thread(&level) != MPI_SUCCESS)
    return fail(ENOTSUP, "lmdbio_mpi_world: MPI is not initialized");
  if (level != MPI_THREAD_MULTIPLE)
    return fail(ENOTSUP, "lmdbio_mpi_world: MPI was not initialized with MPI_THREAD_MULTIPLE");
  const std::lock_guard lock(mutex);
  if (world == nullptr) {
    // Do not use MPI_Comm_dup.  It is a collective call on MPI_COMM_WORLD, and other threads may be in one.
    constexpr int kTag = 0x4c4d;
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Comm own = MPI_COMM_NULL;
    int rc = MPI_Comm_group(MPI_COMM_WORLD, &all);
    if (rc == MPI_SUCCESS) rc = MPI_Comm_create_group(MPI_COMM_WORLD, all, kTag, &own);
    if (rc != MPI_SUCCESS) return fail_mpi("lmdbio_mpi_world", rc);
    (void)MPI_Group_free(&all);
    const int made = lmdbio_mpi_init(own, nullptr, &world);
    (void)MPI_Comm_free(&own);
    if (made != 0) return made;
  }
  if (::getpid() != world->pid) return fail(EINVAL, "lmdbio_mpi_world: a forked child cannot use MPI");
  (void)MPI_Comm_rank(MPI_COMM_WORLD, rank);
  (void)MPI_Comm_size(MPI_COMM_WORLD, ranks);
  *out = world;
  return 0;
}

__attribute__((visibility("default"))) int lmdbio_mpi_reader_open(lmdbio_mpi* mpi, const char* path,
                                                                  const lmdbio_reader_options* options,
                                                                  lmdbio_reader** reader) {
  if (mpi == nullptr) return fail(EINVAL, "lmdbio_mpi_reader_open: null argument");
  return functions()->reader_open(mpi->team, path, options, reader);
}

__attribute__((visibility("default"))) int lmdbio_mpi_follow_open(lmdbio_mpi* mpi, const char* path,
                                                                  const lmdbio_follow_options* options,
                                                                  lmdbio_follow** follow) {
  if (mpi == nullptr) return fail(EINVAL, "lmdbio_mpi_follow_open: null argument");
  return functions()->follow_open(mpi->team, path, options, follow);
}

__attribute__((visibility("default"))) int lmdbio_mpi_wait(lmdbio_reader* reader) {
  return functions() != nullptr ? functions()->wait(reader) : ENOTSUP;
}

__attribute__((visibility("default"))) unsigned lmdbio_mpi_nodes(const lmdbio_mpi* mpi) {
  return mpi != nullptr ? functions()->nodes(mpi->team) : 0;
}

__attribute__((visibility("default"))) int lmdbio_mpi_poll(lmdbio_mpi* mpi) {
  return mpi != nullptr ? functions()->poll(mpi->team) : fail(EINVAL, "lmdbio_mpi_poll: null argument");
}

__attribute__((visibility("default"))) int lmdbio_mpi_finalize(lmdbio_mpi* mpi) {
  if (mpi == nullptr || ::getpid() != mpi->pid) return 0;  // a forked child must not change anything
  const int rc = functions()->close(mpi->team);
  // Delete the attribute, so that MPI_Finalize does not call at_finalize().  MPI may have been finalized
  // already.
  if (mpi_runs()) {
    int keyval = mpi->keyval;
    (void)MPI_Comm_delete_attr(MPI_COMM_SELF, keyval);
    (void)MPI_Comm_free_keyval(&keyval);
  }
  functions()->free(mpi->team);
  delete mpi;
  return rc;
}

}  // extern "C"
