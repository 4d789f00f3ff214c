// lmdbio-serve: the server of a node (`lmdbio serve`).  One process on each node, all of them one MPI job.
#include <mpi.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/base/config.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/node/service.h"
#include "lmdbio/ranks/mpi_transport.h"
#include "lmdbio/serve/command.h"
#include "lmdbio/serve/home_files.h"
#include "lmdbio/serve/ready.h"
#include "lmdbio/serve/server.h"

namespace {

using lmdbio::node::ServiceHost;
using lmdbio::serve::Command;
using lmdbio::serve::Server;

/// How long the server sleeps if something is under way, and if nothing is, in ns.  MPI cannot wake it.
constexpr std::int64_t kBusyNap = 50'000, kIdleNap = 1'000'000;
/// How long the servers wait for each other after a signal, in ns.
constexpr std::int64_t kLeaveTogether = 2'000'000'000;
/// How long a server goes on to store its part of the files on local disk after the end, in ns.
constexpr std::int64_t kLongestStore = 5'000'000'000;
constexpr int kUnusable = 2;

struct Options {
  std::uint64_t memory = 0;  ///< bytes; 0: as LMDBIO_MEMORY
  double leave_after = 0;    ///< seconds; 0: never
  bool stats = false;
  bool announce = false;  ///< print kReady
  std::vector<std::string> command;
};

std::atomic<bool> stopped{false};

/// Tells whether all servers have come to their end.
class End {
 public:
  bool is_begun() const noexcept { return request_ != MPI_REQUEST_NULL || done_; }
  void begin() {
    if (!is_begun() && MPI_Ibarrier(MPI_COMM_WORLD, &request_) != MPI_SUCCESS)
      throw std::runtime_error("MPI_Ibarrier has failed");
  }
  bool is_reached() {
    int done = 0;
    if (request_ != MPI_REQUEST_NULL && MPI_Test(&request_, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      throw std::runtime_error("MPI_Test has failed");
    done_ = done_ || done != 0;
    return done_;
  }

 private:
  MPI_Request request_ = MPI_REQUEST_NULL;
  bool done_ = false;
};

/// Serves until the end of all servers.  Returns false if they do not come to their end together: some of
/// them do not end after a signal, or MPI has failed.
bool serve(ServiceHost& host, Server& server, const Options& options, Command* command) {
  End end;
  bool works = true;
  std::int64_t last_program = lmdbio::now_ns(), stopped_at = 0, over_at = 0;
  const std::int64_t leave_within = kLeaveTogether + (lmdbio::config().cache_dir.empty() ? 0 : kLongestStore);
  while (!works || !end.is_begun() || !end.is_reached()) {
    if (works && !server.step().ok()) {
      works = false;
      host.set_nodes(0);
      std::fprintf(stderr, "lmdbio serve: MPI does not work any more; programs read the file system\n");
    }
    const std::int64_t now = lmdbio::now_ns();
    if (host.programs() != 0) last_program = now;
    const double unused = static_cast<double>(now - last_program) * 1e-9;
    const bool is_over =
        stopped || (command != nullptr ? command->ended().has_value()
                                       : options.leave_after > 0 && unused > options.leave_after);
    if (!works && (is_over || command == nullptr)) return false;
    if (is_over && over_at == 0) over_at = now;
    const bool stores = server.is_storing() && now - over_at < kLongestStore;
    if (is_over && works && !stores) end.begin();
    if (stopped && stopped_at == 0) stopped_at = now;
    if (stopped_at != 0 && now - stopped_at > leave_within) return false;
    if (!works) (void)server.step();  // what programs have asked for
    if (works && server.has_advanced()) continue;
    if (server.accepts())
      host.wait(server.is_busy() ? kBusyNap : kIdleNap);
    else
      (void)::usleep(kBusyNap / 1000);  // wait() would return at once, because requests wait
  }
  return true;
}

/// Ends the exchange of the servers.  Returns whether nothing is under way any more.  A server receives until
/// all have sent everything.
bool leave(Server& server) {
  End all_have_sent;
  const std::int64_t begun = lmdbio::now_ns();
  server.begin_end();
  while (lmdbio::now_ns() - begun < kLeaveTogether) {
    if (all_have_sent.is_begun() && all_have_sent.is_reached()) {
      if (server.end()) return true;
    } else {
      (void)server.step();
      if (server.has_ended()) all_have_sent.begin();
    }
    (void)::usleep(100);
  }
  return false;
}

void stop_on(int signal) {
  struct sigaction action {};
  action.sa_handler = [](int) { stopped = true; };
  (void)::sigaction(signal, &action, nullptr);
}

void print(const lmdbio::node::ServiceCounts& c) {
  const auto ull = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf(
      "{\"read\": %llu, \"cached\": %llu, \"alone\": %llu, \"to_programs\": %llu, \"to_nodes\": %llu, "
      "\"from_nodes\": %llu}\n",
      ull(c.read), ull(c.cached), ull(c.alone), ull(c.to_programs), ull(c.to_nodes), ull(c.from_nodes));
}

/// Runs the server.  Does not return if MPI_Finalize must not be called.
void run(const Options& options, Command* command) {
  int ranks = 1;
  (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  (void)MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  lmdbio::Result<std::unique_ptr<ServiceHost>> made = ServiceHost::make();
  if (!made)
    throw std::runtime_error(made.error().raw() == EEXIST ? "a server of this user runs on this node already"
                                                          : std::strerror(made.error().raw()));
  std::unique_ptr<ServiceHost> host = std::move(made).value();
  const std::unique_ptr<lmdbio::serve::HomeFiles> files =
      lmdbio::serve::file_system(static_cast<unsigned>(ranks));
  lmdbio::ranks::MpiTransport transport(MPI_COMM_WORLD, 0);
  Server::Settings settings;
  settings.memory =
      options.memory != 0 ? options.memory : lmdbio::config().memory_limit(lmdbio::memory_facts().total);
  settings.copies = settings.memory / 2;
  settings.now = lmdbio::now_ns;
  Server server(*host, transport, *files, settings);
  if (const lmdbio::Status st = server.start(); !st.ok()) throw std::runtime_error(transport.error());
  stop_on(SIGTERM);
  stop_on(SIGINT);
  stop_on(SIGUSR1);  // mpirun and srun pass it on, without killing the servers soon afterwards
  if (MPI_Barrier(MPI_COMM_WORLD) != MPI_SUCCESS) throw std::runtime_error("MPI_Barrier has failed");
  host->set_nodes(static_cast<std::uint32_t>(ranks));
  if (options.announce) {
    int rank = 0;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (MPI_Barrier(MPI_COMM_WORLD) != MPI_SUCCESS) throw std::runtime_error("MPI_Barrier has failed");
    if (rank == 0) (void)(std::fputs(lmdbio::serve::kReady, stdout), std::fflush(stdout));
  }
  if (command != nullptr) command->run();
  bool left = false;
  try {
    const bool together = serve(*host, server, options, command);
    host->set_nodes(0);
    if (options.stats) print(server.counts());
    left = together && leave(server);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "lmdbio serve: %s\n", e.what());
    (void)MPI_Abort(MPI_COMM_WORLD, kUnusable);
  }
  if (left) return;
  // MPI may still use memory of this process, and MPI_Finalize may wait for ever, as may reads.
  host.reset();
  (void)std::fflush(stdout);
  std::_Exit(command != nullptr ? command->ended().value_or(128 + SIGTERM) : kUnusable);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Serves the programs of a node: each byte of a database file leaves the file system once",
               "lmdbio serve");
  Options options;
  app.add_option("--memory", options.memory, "memory for chunks (default: as LMDBIO_MEMORY)")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--leave-after", options.leave_after,
                 "seconds without a program after which the servers end")
      ->check(CLI::PositiveNumber);
  app.add_flag("--stats", options.stats, "print at the end how many bytes came from where, as JSON");
  app.add_flag("--announce", options.announce, "print a line when all servers have started");
  app.prefix_command();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUnusable;
  }
  options.command = app.remaining();
  if (!options.command.empty() && options.command.front() == "--")
    options.command.erase(options.command.begin());
  int status = 0;
  try {
    std::unique_ptr<Command> command;
    if (!options.command.empty()) command = std::make_unique<Command>(options.command);
    int level = MPI_THREAD_SINGLE;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) return kUnusable;
    try {
      run(options, command.get());
      if (command != nullptr) status = command->ended().value_or(128 + SIGTERM);
      (void)MPI_Finalize();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "lmdbio serve: %s\n", e.what());
      (void)MPI_Abort(MPI_COMM_WORLD, kUnusable);
      status = kUnusable;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "lmdbio serve: %s\n", e.what());
    return kUnusable;
  }
  return status;
}
