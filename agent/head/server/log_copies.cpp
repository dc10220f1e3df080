#include "agent/head/server/log_copies.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/kept_log.hpp"
#include "launcher/core/log.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace {

constexpr auto kRetry = 1s;  // after a disk that is full

// A copy that cannot be held to its limit is whole all the same.
Release held(const fs::path& file, std::uint64_t limit, std::uint64_t size) {
  try {
    return hold_to_limit(file, limit, size);
  } catch (const std::exception& error) {
    log::warn("a copy of a log cannot be held to its limit", {{"why", error.what()}});
    return {};
  }
}

}  // namespace

std::uint64_t append_copy(const fs::path& path, std::uint64_t offset, std::string_view bytes,
                          bool released) {
  // Appended to by this process alone.
  const UniqueFd fd = open_file(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw errno_error("cannot look at " + path.string(), errno);
  auto size = static_cast<std::uint64_t>(status.st_size);
  if (released && offset > size) {
    mark_released(path, std::max(offset, released_of(path)));
    if (::ftruncate(fd.get(), static_cast<off_t>(offset)) != 0) {
      throw errno_error("cannot write " + path.string(), errno);
    }
    size = offset;
  }
  if (offset > size) return size;
  const std::uint64_t known = size - offset;
  if (known >= bytes.size()) return size;
  bytes.remove_prefix(known);
  write_all(fd.get(), bytes);
  return size + bytes.size();
}

struct LogCopies::Written {
  std::uint64_t size = 0;
  bool gap = false;  // what comes before the bytes is not here
  std::optional<Error> error;
  Release release;
};

LogCopies::LogCopies(asio::io_context& context, paths::HeadRoot root, Engine& engine,
                     NodeConnections& nodes)
    : context_(context), root_(std::move(root)), engine_(engine), nodes_(nodes) {
  NodeConnections::BulkHooks hooks;
  hooks.message = [this](const NodeId& node, const wire::BulkMessage& each, std::string& bytes) {
    message(node, each, bytes);
  };
  nodes_.on_bulk(std::move(hooks));
}

LogCopies::~LogCopies() {
  alive_.reset();
}

fs::path LogCopies::path(const NodeId& node, const wire::LogName& log) const {
  return root_.mirror(log.job, log.attempt, node) / log.file;
}

// Of a rank's stream; of others all is kept.
std::uint64_t LogCopies::limit_of(const wire::LogName& log) const {
  return wire::is_rank_log(log.file) ? engine_.log_limit(log.job) : 0;
}

void LogCopies::tell(const wire::LogName& log, const Release& release) {
  if (release.what == Release::What::nothing) return;
  engine_.logs_released("the head", log.job, release.why);
}

void LogCopies::message(const NodeId& node, const wire::BulkMessage& message, std::string& bytes) {
  if (const auto* wanted = std::get_if<wire::LogOpen>(&message)) {
    open(node, wanted->log);
  } else if (const auto* data = std::get_if<wire::LogData>(&message)) {
    append(node, *data, std::move(bytes));
  }
}

void LogCopies::open(const NodeId& node, const wire::LogName& log) {
  if (!engine_.knows_share(node, log.job, log.attempt)) {
    nodes_.send_bulk(node, wire::LogRefused{log});
    return;
  }
  writer_.add([this, node, log, limit = limit_of(log), file = path(node, log),
               guard = std::weak_ptr<int>(alive_)] {
    Written result;
    try {
      make_folders(file.parent_path());
      result.size = append_copy(file, 0, {});
      result.release = held(file, limit, result.size);
    } catch (const std::exception& error) {
      result.error = as_error(error);
    }
    asio::post(context_, [this, node, log, result, guard] {
      if (!guard.lock()) return;
      if (result.error) {
        report(node, log, result);
        return;
      }
      tell(log, result.release);
      nodes_.send_bulk(node, wire::LogFrom{log, result.size});
    });
  });
}

void LogCopies::append(const NodeId& node, const wire::LogData& data, std::string bytes) {
  if (!engine_.knows_share(node, data.log.job, data.log.attempt)) {
    nodes_.send_bulk(node, wire::LogRefused{data.log});
    return;
  }
  writer_.add([this, node, data, limit = limit_of(data.log), file = path(node, data.log),
               text = std::move(bytes), guard = std::weak_ptr<int>(alive_)] {
    Written result;
    try {
      failpoint("log.write.before");
      result.size = append_copy(file, data.offset, text, data.released);
      failpoint("log.write.after");
      result.gap = result.size < data.offset;
      // Not looked at for each line.
      if (result.size / kLeastRelease != data.offset / kLeastRelease) {
        result.release = held(file, limit, result.size);
      }
    } catch (const std::exception& error) {
      result.error = as_error(error);
    }
    asio::post(context_, [this, node, log = data.log, result, guard] {
      if (guard.lock()) report(node, log, result);
    });
  });
}

void LogCopies::report(const NodeId& node, const wire::LogName& log, Written result) {
  if (!result.error && !result.gap) {
    trouble_said_ = false;
    tell(log, result.release);
    nodes_.send_bulk(node, wire::LogTaken{log, result.size});
    return;
  }
  if (result.gap) return;  // behind bytes that could not be written; LogFrom is on its way
  if (!std::exchange(trouble_said_, true)) {
    log::warn("copies of logs cannot be written; trying again", {{"why", result.error->what()}});
  }
  const auto timer = std::make_shared<asio::steady_timer>(context_, kRetry);
  timer->async_wait([this, timer, node, log,
                     guard = std::weak_ptr<int>(alive_)](boost::system::error_code stopped) {
    if (!stopped && guard.lock()) open(node, log);
  });
}

}  // namespace dtrain::head
