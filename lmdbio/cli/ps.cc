// lmdbio ps: lists the processes of this user that share files on this node.

#include <sys/sysmacros.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/process_facts.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/cli/totals_json.h"
#include "lmdbio/node/chunk_file.h"
#include "lmdbio/node/counter_board.h"
#include "lmdbio/node/listing.h"
#include "lmdbio/node/service.h"

namespace lmdbio::cli {
namespace {

struct Options {
  bool json = false, clean = false;
};

struct Process {
  node::ListedProcess row;
  std::optional<std::string> command;
  std::optional<double> walk_age_s;
};

struct Shared {
  node::ListedTable table;
  std::string path;  ///< empty: unknown
  std::vector<Process> processes;
};

unsigned long long ull(std::uint64_t v) { return v; }

/// Returns the time since `then_ns`, or nullopt if the process is in another time namespace or its row is
/// damaged.
std::optional<double> age_s(std::int64_t then_ns) noexcept {
  const std::int64_t now = now_ns();
  if (then_ns <= 0 || then_ns > now) return std::nullopt;
  return static_cast<double>(now - then_ns) / 1e9;
}

std::vector<Shared> look() {
  std::vector<Shared> found;
  for (node::ListedTable& table : node::list_tables()) {
    Shared s{std::move(table), "", {}};
    for (const node::ListedProcess& row : s.table.processes) {
      Process p{row, std::nullopt, age_s(row.walk_ns)};
      if (const auto facts = ProcessFacts::find(row.pid, row.life_segment)) {
        p.command = facts->command();
        if (s.path.empty() && s.table.file) s.path = facts->path_of(s.table.file->dev, s.table.file->ino);
      }
      s.processes.push_back(std::move(p));
    }
    found.push_back(std::move(s));
  }
  return found;
}

std::string walk_text(const Process& p) {
  const node::WalkNote& w = p.row.walk;
  if (w.share == 0) return "-";
  std::string text = format_text("chunk %u, uses %.1f %%", w.chunk, w.share / 10.0);
  if (p.walk_age_s) text += format_text(", %.1f s ago", *p.walk_age_s);
  return text;
}

/// Returns how much memory the process keeps in /dev/shm for other processes.
std::string memory_text(const Shared& s, const Process& p) {
  if (p.row.files == 0 || !s.table.file) return "-";
  return format_text("%llu MiB", ull(p.row.files * (s.table.file->chunk_bytes >> 20)));
}

std::string name_of(const Shared& s) {
  if (!s.table.file) return format_text("unknown file (segment %d)", s.table.segment.id);
  const node::TableIdentity& f = *s.table.file;
  return (s.path.empty() ? "" : printable(s.path) + ": ") +
         format_text("device %u:%u, inode %llu, chunks of %s", gnu_dev_major(f.dev), gnu_dev_minor(f.dev),
                     ull(f.ino), bytes_text(static_cast<double>(f.chunk_bytes)).c_str());
}

std::string size_text(std::uint64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

/// Shows the server of the node (`lmdbio serve`).
void show_text(const node::ListedService& server) {
  if (server.dead) {
    std::printf("a server of this node was killed; lmdbio ps --clean removes what it left\n");
    return;
  }
  const node::ServiceCounts& c = server.counts;
  const std::string disk = c.cached != 0 ? ", " + size_text(c.cached) + " from local disk" : "";
  std::printf(
      "server of %s, used by %s: %s read%s, %s to programs, %s to and %s from other nodes, "
      "%s in memory\n",
      counted(server.nodes, "node").c_str(), counted(server.programs, "program").c_str(),
      size_text(c.read).c_str(), disk.c_str(), size_text(c.to_programs).c_str(),
      size_text(c.to_nodes).c_str(), size_text(c.from_nodes).c_str(), size_text(c.kept).c_str());
}

void show_text(const std::vector<Shared>& all) {
  if (all.empty()) std::printf("no process of this user shares a file on this node\n");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Shared& s = all[i];
    if (i != 0) std::printf("\n");
    std::printf("%s\n", name_of(s).c_str());
    if (s.table.dead) {
      std::printf("  no process is attached; lmdbio ps --clean removes this table\n");
      continue;
    }
    if (s.processes.empty()) {
      std::printf("  attached %s, but the table lists no process\n",
                  counted(s.table.segment.attached, "time").c_str());
      continue;
    }
    std::printf("  %10s %-15s %10s %10s %10s %10s %10s  %s\n", "pid", "command", "read", "found", "waits",
                "taken over", "/dev/shm", "walk");
    for (const Process& p : s.processes)
      std::printf("  %10u %-15s %10llu %10llu %10llu %10llu %10s  %s\n", p.row.pid,
                  p.command ? printable(*p.command).c_str() : "?", ull(p.row.brought), ull(p.row.found),
                  ull(p.row.waits), ull(p.row.taken_over), memory_text(s, p).c_str(), walk_text(p).c_str());
  }
}

Json walk_json(const Process& p) {
  const node::WalkNote& w = p.row.walk;
  if (w.share == 0) return {};
  return {{"chunk", w.chunk},
          {"share", w.share / 1000.0},
          {"age_s", p.walk_age_s ? Json(*p.walk_age_s) : Json()}};
}

Json server_json(const std::optional<node::ListedService>& server) {
  if (!server) return {};
  const node::ServiceCounts& c = server->counts;
  return {{"dead", server->dead},
          {"nodes", server->nodes},
          {"programs", server->programs},
          {"read", c.read},
          {"to_programs", c.to_programs},
          {"to_nodes", c.to_nodes},
          {"from_nodes", c.from_nodes},
          {"kept", c.kept},
          {"alone", c.alone},
          {"cached", c.cached}};
}

void show_json(const std::vector<Shared>& all, const std::optional<node::ListedService>& server) {
  Json tables = Json::array();
  for (const Shared& s : all) {
    const auto& file = s.table.file;
    Json processes = Json::array();
    for (const Process& p : s.processes)
      processes.push_back({{"pid", p.row.pid},
                           {"command", p.command ? Json(*p.command) : Json()},
                           {"brought", p.row.brought},
                           {"found", p.row.found},
                           {"waits", p.row.waits},
                           {"taken_over", p.row.taken_over},
                           {"chunk_files", p.row.files},
                           {"walk", walk_json(p)}});
    tables.push_back({{"path", s.path.empty() ? Json() : Json(s.path)},
                      {"device", file ? Json(file->dev) : Json()},
                      {"inode", file ? Json(file->ino) : Json()},
                      {"chunk_bytes", file ? Json(file->chunk_bytes) : Json()},
                      {"segment", s.table.segment.id},
                      {"attached", s.table.segment.attached},
                      {"dead", s.table.dead},
                      {"processes", std::move(processes)}});
  }
  std::printf("%s\n", dump(Json{{"tables", std::move(tables)}, {"server", server_json(server)}}).c_str());
}

void clean(bool json) {
  const std::size_t removed = node::remove_dead_tables(), files = node::remove_dead_chunk_files();
  const std::size_t boards = node::remove_dead_boards();
  const bool server = node::remove_dead_service();
  if (json)
    std::printf("%s\n", dump(Json{{"removed", removed},
                                  {"removed_chunk_files", files},
                                  {"removed_statistics", boards},
                                  {"removed_server", server}})
                            .c_str());
  else
    std::printf("%s removed, %s removed, statistics of %s removed%s\n", counted(removed, "table").c_str(),
                counted(files, "chunk file").c_str(), counted(boards, "process", "processes").c_str(),
                server ? ", server removed" : "");
}

int ps(const Options& options) {
  if (options.clean) {
    clean(options.json);
  } else {
    const std::vector<Shared> all = look();
    const std::optional<node::ListedService> server = node::listed_service();
    if (options.json) {
      show_json(all, server);
    } else {
      if (server) show_text(*server);
      show_text(all);
    }
  }
  return kClean;
}

}  // namespace

void add_ps(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub = app.add_subcommand("ps", "list this user's processes on this node that share files");
  sub->add_flag("--json", options->json, "print one JSON object");
  sub->add_flag("--clean", options->clean,
                "remove shared memory that killed processes left behind; list nothing");
  sub->callback([options, &status] { status = ps(*options); });
}

}  // namespace lmdbio::cli
