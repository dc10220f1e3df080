#include "agent/head/server/file_server.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <map>
#include <optional>
#include <set>

#include "agent/head/server/api_impl.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/kept_log.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/number.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {

using boost::system::error_code;
using nlohmann::json;
using UnixSocket = asio::local::stream_protocol::socket;

namespace {

constexpr std::size_t kChunk = std::size_t{256} << 10;
constexpr std::size_t kManifestLimit = std::size_t{64} << 20;

// "bytes=N-" as N; any other range is not honoured, which HTTP allows.
std::optional<std::uint64_t> range_start(std::string_view header) {
  constexpr std::string_view kUnit = "bytes=";
  if (header.size() <= kUnit.size() || header.substr(0, kUnit.size()) != kUnit ||
      header.back() != '-') {
    return std::nullopt;
  }
  return number_from<std::uint64_t>(header.substr(kUnit.size(), header.size() - kUnit.size() - 1));
}

std::string head_of(const std::string& status, const char* type, std::uint64_t length, bool keep) {
  return "HTTP/1.1 " + status + "\r\nContent-Type: " + type +
         (keep ? "" : "\r\nConnection: close") + "\r\nContent-Length: " + std::to_string(length) +
         "\r\n";
}

std::string json_answer(const std::string& status, const json& answer, bool keep) {
  const std::string body = wire::dump(answer) + "\n";
  return head_of(status, "application/json", body.size(), keep) + "\r\n" + body;
}

// A file's size; absent when it is not there.
std::optional<std::uint64_t> size_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return static_cast<std::uint64_t>(status.st_size);
  if (errno == ENOENT) return std::nullopt;
  throw errno_error("cannot look at " + path.string(), errno);
}

}  // namespace

JobFiles job_files(const Engine& engine, const JobId& job) {
  JobFiles files;
  const json all = engine.job(job);
  for (const json& checkpoint : all.value("checkpoints", json::array())) {
    files.checkpoints.emplace_back(checkpoint.value("path", ""));
  }
  for (int attempt = 1; attempt <= engine.newest_attempt(job); ++attempt) {
    const std::string base = "logs/attempt-" + std::to_string(attempt) + "/";
    for (const Engine::LogSource& source : engine.logs(job, attempt)) {
      files.logs.emplace_back(base + std::to_string(source.rank) + ".out", source.out());
      files.logs.emplace_back(base + std::to_string(source.rank) + ".err", source.err());
    }
    for (const auto& [name, path] : engine.other_logs(job, attempt)) {
      files.logs.emplace_back(base + name, path);
    }
  }
  return files;
}

json manifest_files(const fs::path& folder) {
  const fs::path path = folder / "manifest.json";
  const json manifest =
      wire::parse_json(read_file(path, kManifestLimit), path.string(), kManifestLimit);
  return manifest.value("files", json::array());
}

json list_files(const JobFiles& files) {
  json answer;
  json& listing = answer["files"] = json::array();
  json& troubles = answer["troubles"] = json::array();
  const auto trouble = [&](const std::string& name, const Error& error) {
    json row = wire::error_to_json(error);
    row["path"] = name;
    troubles.push_back(std::move(row));
  };
  for (const fs::path& folder : files.checkpoints) {
    const std::string base = "checkpoints/" + folder.filename().string() + "/";
    try {
      json rows = manifest_files(folder);
      for (json& file : rows) {
        file["path"] = base + file.value("path", "");
        if (!file.contains("sha256")) file["sha256"] = nullptr;
        listing.push_back(std::move(file));
      }
      const FileSum sum = sum_file(folder / "manifest.json");
      listing.push_back(
          {{"path", base + "manifest.json"}, {"size", sum.size}, {"sha256", sum.sha256}});
    } catch (const Error& error) {
      trouble(base, error);
    }
  }
  for (const auto& [name, path] : files.logs) {
    try {
      const std::optional<std::uint64_t> size = size_of(path);
      if (!size) continue;  // nothing was written
      json row = {{"path", name}, {"size", *size}, {"sha256", nullptr}};
      if (const std::uint64_t released = released_of(path)) row["released"] = released;
      listing.push_back(std::move(row));
    } catch (const Error& error) {
      trouble(name, error);
    }
  }
  return answer;
}

// One connection, on the server's thread.
class FileServer::Visit : public std::enable_shared_from_this<FileServer::Visit> {
 public:
  Visit(FileServer& server, UnixSocket socket, JobId job)
      : server_(server),
        socket_(std::move(socket)),
        job_(std::move(job)),
        base_("/v1/jobs/" + job_.str() + "/files") {}

  asio::awaitable<void> run(std::string bytes) {
    const auto self = shared_from_this();
    beast::flat_buffer buffer;
    // The first request was read elsewhere; it is read again.
    const auto space = buffer.prepare(bytes.size());
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(space.data()));
    buffer.commit(bytes.size());
    while (true) {
      error_code failed;
      http::request_parser<http::string_body> parser;
      co_await http::async_read(socket_, buffer, parser,
                                asio::redirect_error(asio::use_awaitable, failed));
      if (failed) co_return;
      const bool keep = parser.keep_alive();
      const bool sent = co_await answer(parser.release(), keep);
      if (!sent || !keep) co_return;
    }
  }

 private:
  // False when the connection is over.
  asio::awaitable<bool> answer(http::request<http::string_body> request, bool keep) {
    std::optional<Error> refusal;
    try {
      const std::string path = percent_decode(std::string(request.target()));
      if (path == base_) {
        co_await look();
        const std::string listed = json_answer("200 OK", list_files(files_), keep);
        const bool sent = co_await write(listed);
        co_return sent;
      }
      if (path.rfind(base_ + "/", 0) != 0 || request.method() != http::verb::get) {
        throw Error(ErrorCode::invalid, "this connection is for files of " + job_.str());
      }
      const std::string name = path.substr(base_.size() + 1);
      std::optional<Found> file = find(name);
      if (!file) {
        co_await look();
        file = find(name);
      }
      if (!file) {
        throw Error(ErrorCode::not_found, "job " + job_.str() + " has no file " + name);
      }
      const bool sent = co_await write_file(*file, request, keep);
      co_return sent;
    } catch (const Error& error) {
      refusal = error;
    } catch (const std::exception& error) {
      refusal = Error(ErrorCode::internal, error.what());
    }
    const std::string refused = json_answer(std::to_string(status_of(refusal->code())) + " Refused",
                                            wire::error_to_json(*refusal), keep);
    const bool sent = co_await write(refused);
    co_return sent;
  }

  // Has the engine's thread say what files there are.
  asio::awaitable<void> look() {
    struct Found {
      JobFiles files;
      std::exception_ptr failed;
    };
    const auto found = std::make_shared<Found>();
    co_await asio::async_initiate<decltype(asio::use_awaitable), void()>(
        [&](auto handler) {
          const auto done = std::make_shared<decltype(handler)>(std::move(handler));
          asio::post(server_.engine_context_, [self = shared_from_this(), found, done] {
            try {
              found->files = job_files(self->server_.engine_, self->job_);
            } catch (...) {
              found->failed = std::current_exception();
            }
            asio::post(self->server_.idle_.context(), [done] { (*done)(); });
          });
        },
        asio::use_awaitable);
    if (found->failed) std::rethrow_exception(found->failed);
    files_ = std::move(found->files);
    manifests_.clear();
  }

  struct Found {
    fs::path path;
    bool log = false;  // whose oldest part may not be there
  };

  // Only what the listing names is ever opened.
  std::optional<Found> find(const std::string& name) {
    for (const fs::path& folder : files_.checkpoints) {
      const std::string base = "checkpoints/" + folder.filename().string() + "/";
      if (name.rfind(base, 0) != 0) continue;
      const std::string rest = name.substr(base.size());
      if (rest != "manifest.json" && !names_in(folder).contains(rest)) return std::nullopt;
      return Found{folder / rest};
    }
    for (const auto& [known, path] : files_.logs) {
      if (known == name) return Found{path, true};
    }
    return std::nullopt;
  }

  const std::set<std::string>& names_in(const fs::path& folder) {
    const auto [known, fresh] = manifests_.try_emplace(folder);
    if (fresh) {
      for (const json& file : manifest_files(folder)) known->second.insert(file.value("path", ""));
    }
    return known->second;
  }

  static KeptBytes read_some(int fd, const Found& file, std::uint64_t from, std::uint64_t most) {
    if (file.log) return read_kept(fd, file.path, from, most);
    return {from, read_at(fd, file.path, from, most)};
  }

  asio::awaitable<bool> write(std::string_view bytes) {
    error_code failed;
    co_await asio::async_write(socket_, asio::buffer(bytes),
                               asio::redirect_error(asio::use_awaitable, failed));
    co_return !failed;
  }

  asio::awaitable<bool> write_file(Found file, const http::request<http::string_body>& request,
                                   bool keep) {
    const fs::path& path = file.path;
    const UniqueFd fd = open_file(path, O_RDONLY);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
      throw Error(ErrorCode::io, path.string() + " is no file");
    }
    const auto size = static_cast<std::uint64_t>(status.st_size);
    const auto start = range_start(std::string(request[http::field::range]));
    const std::uint64_t released = file.log ? released_of(path) : 0;
    if (released > 0 && !start) {
      throw Error(ErrorCode::conflict, "its first " + std::to_string(released) +
                                           " bytes were released, as log_limit says")
          .with_hint("`dtrain pull` of this version brings the others; in HTTP, a Range does");
    }
    std::uint64_t from = std::min(std::max(start.value_or(0), released), size);
    std::string bytes = head_of(start ? "206 Partial Content" : "200 OK",
                                "application/octet-stream", size - from, keep);
    if (start) {
      bytes += "Content-Range: bytes " + std::to_string(from) + "-" +
               std::to_string(size == 0 ? 0 : size - 1) + "/" + std::to_string(size) + "\r\n";
    }
    bytes += "\r\n";
    bool begun = false;
    while (true) {
      const std::uint64_t wanted = std::min<std::uint64_t>(kChunk, size - from);
      KeptBytes read{from, {}};
      std::string why = "it shrank, or was released meanwhile";
      try {
        if (wanted > 0) read = read_some(fd.get(), file, from, wanted);
      } catch (const Error& error) {
        if (!begun) throw;
        why = error.what();
      }
      if (wanted > 0 && (read.bytes.empty() || read.offset != from)) {
        // An answer has begun, and no other may stand in it: the client sees too few bytes, and
        // asks for the others.
        log::warn("a file cannot be sent whole", {{"path", path.string()}, {"why", why}});
        co_return false;
      }
      begun = true;
      from += read.bytes.size();
      bytes += read.bytes;
      const bool sent = co_await write(bytes);
      if (!sent || from == size) co_return sent;
      bytes.clear();
    }
  }

  FileServer& server_;
  UnixSocket socket_;
  JobId job_;
  std::string base_;
  JobFiles files_;
  std::map<fs::path, std::set<std::string>> manifests_;
};

FileServer::FileServer(asio::io_context& engine_context, Engine& engine)
    : engine_context_(engine_context), engine_(engine) {}

void FileServer::serve(UnixSocket socket, const std::string& request, const std::string& behind,
                       JobId job, std::shared_ptr<void> held) {
  const auto visit = std::make_shared<Visit>(*this, idle_.take(std::move(socket)), std::move(job));
  asio::co_spawn(
      idle_.context(),
      [visit, bytes = request + behind]() mutable { return visit->run(std::move(bytes)); },
      [held = std::move(held)](const std::exception_ptr& failed) {
        if (failed) std::rethrow_exception(failed);
      });
}

}  // namespace dtrain::head
