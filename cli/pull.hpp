#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "launcher/core/files.hpp"

namespace dtrain::cli {

// One file to bring here.
struct RemoteFile {
  std::string path;  // relative, as the head names it
  std::uint64_t size = 0;
  std::optional<std::string> sha256;  // absent for what may still grow
  std::uint64_t released = 0;         // bytes at its beginning that are not there any more
};

enum class Pulled : std::uint8_t { already_here, resumed, whole };

// The path below `folder` for a name from outside; throws Error(denied) for one that would leave
// it.
fs::path safe_below(const fs::path& folder, const std::string& relative);

// A file on its way here, into a part beside `target`, where an interrupted pull goes on: no sum
// would tell another job's from this one's where there is none, so such a part is named by its job.
// Where bytes of a log are not there any more a line says how many; such a one is brought anew each
// time. All throw Error.
class Incoming {
 public:
  Incoming(RemoteFile file, fs::path target, std::string job = {});
  ~Incoming();
  Incoming(Incoming&&) noexcept;
  Incoming& operator=(Incoming&&) noexcept;

  const RemoteFile& file() const { return file_; }
  const fs::path& target() const { return target_; }
  fs::path part() const;
  // What is there has the right size and sum; without a sum it can be another job's all the same.
  bool already_here() const;
  // Where in the head's file the bytes are to begin; its size when none are missing.
  std::uint64_t offset() const { return offset_; }
  bool wants_bytes() const { return offset_ < file_.size || file_.size == 0; }
  Pulled how() const { return offset_ > file_.released ? Pulled::resumed : Pulled::whole; }
  std::uint64_t released() const { return released_; }  // bytes for which there are lines instead

  void take(std::string_view bytes);
  void gap(std::uint64_t bytes);
  // After the last byte: whether size and sum are right. They need not be for a part of something
  // else; then start_over() once.
  bool whole();
  void start_over();

 private:
  struct Writing;
  void open();

  RemoteFile file_;
  fs::path target_;
  std::string job_;
  std::uint64_t offset_ = 0;
  std::uint64_t position_ = 0;  // in the head's file
  std::uint64_t released_ = 0;
  std::unique_ptr<Writing> writing_;
};

// Files that came whole, on their way to their names. They are made durable before they get them:
// a large one by itself, many small ones together, for an fsync each would take longer than all
// else. What is not named when the program ends is found by the next pull.
class Arrivals {
 public:
  // Whether so many wait that they are to be named now.
  bool add(const Incoming& file);
  // All that were added have their names, durably. Throws Error.
  void name_all();

 private:
  struct Arrival {
    fs::path part;
    fs::path target;
  };
  std::vector<Arrival> waiting_;
  std::uint64_t bytes_ = 0;
};

// What `dtrain pull` brought.
struct PulledJob {
  bool complete = false;  // no file that the head cannot read
  nlohmann::json json;
  std::string line;  // "3 files of mnist-abcdef in mnist-abcdef (1.2 MiB moved)"
};
// All of a job, into `folder`; empty: one named by its id. Throws Error, also for `stop`; what came
// until then is kept.
PulledJob pull_job(Context& context, const std::string& job, const std::string& folder,
                   const std::stop_token& stop = {});

}  // namespace dtrain::cli
