#include "launcher/remote/bootstrap.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/remote/gzip.hpp"
#include "launcher/remote/relay.hpp"

namespace dtrain {
namespace {

using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;

constexpr std::size_t kNoiseLimit = std::size_t{1} << 20;  // of a profile, before the marker
constexpr std::chrono::seconds kLastWords{5};

milliseconds left_until(Steady::time_point until) {
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(until - Steady::now()));
}

// False when nothing came until then.
bool wait_for(int fd, short what, Steady::time_point until) {
  while (true) {
    pollfd waiting{fd, what, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(left_until(until).count()));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) throw errno_error("cannot wait for the machine", errno);
  }
}

// What the last lines before an end say, for people.
std::string last_words(const std::string& text) {
  std::vector<std::string> lines;
  for (std::string& line : split(text, '\n')) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(std::move(line));
  }
  if (lines.size() > 5) lines.erase(lines.begin(), lines.end() - 5);
  return printable(join(lines, " | "), false);
}

// Reads to the end of the line that holds the marker, and not a byte more. Gives what stands behind
// the marker.
std::string read_marker(Channel& channel, const std::string& marker, Steady::time_point until) {
  std::array<char, 4096> piece{};
  std::string text;
  std::size_t line = 0;  // where the last line begins
  while (true) {
    if (!wait_for(channel.fd(), POLLIN, until)) {
      throw Error(ErrorCode::timeout,
                  "the machine's shell does not answer" +
                      (text.empty() ? std::string() : "; it has said: " + last_words(text)))
          .with_hint(
              "a profile that waits for input, or starts a program, keeps it from answering");
    }
    const ssize_t seen = ::recv(channel.fd(), piece.data(), piece.size(), MSG_PEEK);
    if (seen < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (seen <= 0) throw ended_early(channel, "the machine's shell ended: " + last_words(text));
    // Up to the end of the marker's line: what follows it is not ours to take.
    const std::string now =
        text.substr(line) + std::string(piece.data(), static_cast<std::size_t>(seen));
    const std::size_t at = now.find(marker + " ");
    const std::size_t newline = at == std::string::npos ? at : now.find('\n', at);
    const std::size_t take = newline == std::string::npos ? static_cast<std::size_t>(seen)
                                                          : newline + 1 - (text.size() - line);
    const ssize_t got = ::recv(channel.fd(), piece.data(), take, MSG_WAITALL);
    if (got <= 0) continue;
    if (newline != std::string::npos) {
      return now.substr(at + marker.size() + 1, newline - at - marker.size() - 1);
    }
    text.append(piece.data(), static_cast<std::size_t>(got));
    const std::size_t last = text.rfind('\n');
    if (last != std::string::npos && at == std::string::npos) line = last + 1;
    if (text.size() > kNoiseLimit) {
      throw Error(ErrorCode::invalid, "the login there prints without end: " +
                                          last_words(text.substr(text.size() - 2000)));
    }
  }
}

struct Packed {
  std::string content;
  std::string sha256;
};

// For all hosts and sessions the same.
std::shared_ptr<const Packed> packed(const AgentBinary& binary) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Packed>> known;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const Packed>& found = known[binary.sha256];
  if (!found) {
    auto file = std::make_shared<Packed>();
    file->content = gzip_of(binary.content);
    Sha256 sum;
    sum.add(file->content);
    file->sha256 = sum.hex();
    found = file;
  }
  return found;
}

// What the first line says of a machine.
struct MachineLine {
  std::string system;
  std::string machine;
  bool needs = false;    // the agent
  bool unpacks = false;  // it has gzip
  std::string address;   // by which this login reached it, or "-"
};

MachineLine machine_line(const std::string& line, Channel& channel) {
  const std::vector<std::string> words = split(line, ' ');
  if (words.size() < 6) throw ended_early(channel, "the machine says not what it is");
  // Of the release nobody knows how many words it has.
  const auto last = words.rbegin();
  return {words.front(), last[3], last[2] == "need", last[1] == "gzip", last[0]};
}

void send_binary(Channel& channel, const MachineLine& there, const AgentBinary& binary,
                 const std::string& gone, const AgentSessionOptions& options,
                 Bootstrapped& result) {
  const auto send = [&](const std::string& how, std::string_view bytes) {
    send_all(channel, how + " " + std::to_string(bytes.size()) + "\n", options.send_silence);
    send_all(channel, bytes, options.send_silence);
  };
  if (!there.unpacks) return send("plain", binary.content);
  const std::shared_ptr<const Packed> file = packed(binary);
  if (options.spread) {
    result.seat = options.spread->join(options.name);
    send("relay", relay_program());
    if (feed_relay(channel, *result.seat, {file->content, file->sha256}, there.address, gone,
                   options.send_silence))
      return;
  }
  send("gzip", file->content);
}

}  // namespace

std::string bootstrap_script() {
  return
      // $o is where the agent goes when the home will not do: full of others, so it must be ours.
      R"~(umask 077; trap : PIPE; x=$(uname -srm); )~"
      R"~(o=${DTRAIN_SPARE_ROOT:-/var/tmp/dtrain-$(id -u)}; )~"
      R"~(a=$HOME/.dtrain/agents/$2; b=$o/agents/$2; w=need; )~"
      R"~(if [ "$4" = 0 ]; then if [ -x "$a/dtrain-agent" ]; then w=have; )~"
      R"~(elif [ -L "$o" ]; then :; )~"
      R"~(elif [ -O "$o" ] && [ -x "$b/dtrain-agent" ]; then w=have; a=$b; fi; fi; )~"
      R"~(z=plain; if command -v gzip >/dev/null 2>&1; then z=gzip; fi; )~"
      // CLIENT PORT SERVER PORT
      R"~(s=${SSH_CONNECTION% *}; s=${s##* }; )~"
      R"~(echo "$1 $x $w $z ${s:--}"; case $x in Linux*x86_64) ;; *) exit 91;; esac; )~"
      R"~(f=; if [ $w = need ]; then f=--fresh; k=; for d in "$a" "$b"; do )~"
      R"~(if [ "$d" = "$b" ]; then mkdir "$o" 2>/dev/null; )~"
      R"~(if [ -O "$o" ] && [ -d "$o" ]; then if [ -L "$o" ]; then continue; fi; )~"
      R"~(else continue; fi; fi; t=$d/.$1; )~"
      // A file system mounted noexec says so here, before anything is sent.
      R"~(if mkdir -p "$d" && true >"$t" && chmod 700 "$t" && [ -x "$t" ]; then k=1; break; fi; )~"
      R"~(rm -f "$t"; done; )~"
      R"~(if [ -z "$k" ]; then echo "no folder there can hold a program: tried $a and $b" >&2; )~"
      R"~(exit 92; fi; )~"
      // A relay that ends without the file is asked for no more; the file comes in another way.
      R"~(k=; while read -r m n; do case $m in plain) head -c "$n" >"$t" && k=1; break;; )~"
      R"~(gzip) head -c "$n" | gzip -dc >"$t" && k=1; break;; )~"
      R"~(relay) if head -c "$n" >"$t.r" && [ "$(wc -c <"$t.r")" -eq "$n" ] && )~"
      R"~(chmod 700 "$t.r" && "$t.r" "$t.z"; )~"
      R"~(then gzip -dc <"$t.z" >"$t" && k=1; break; fi; rm -f "$t.r" "$t.z"; echo "$1 gone";; )~"
      R"~(esac; done; rm -f "$t.r" "$t.z"; )~"
      R"~(if [ -n "$k" ] && [ "$(wc -c <"$t")" -eq "$3" ] && mv -f "$t" "$d/dtrain-agent"; )~"
      R"~(then a=$d; else rm -f "$t"; echo "the agent could not be written to $d" >&2; exit 93; fi; )~"
      R"~(fi; exec "$a/dtrain-agent" session $f)~";
}

std::string relay_script() {
  return R"~(umask 077; trap : PIPE; s=${SSH_CONNECTION% *}; s=${s##* }; echo "$1 ${s:--}"; )~"
         R"~(t=$2/$3; read -r n; if head -c "$n" >"$t.r" && [ "$(wc -c <"$t.r")" -eq "$n" ] && )~"
         R"~(chmod 700 "$t.r" && "$t.r" "$t"; )~"
         R"~(then read -r n; else rm -f "$t.r"; echo "$1 gone"; fi; rm -f "$t")~";
}

Error ended_early(Channel& channel, const std::string& what) {
  std::optional<int> code;
  std::string lost;
  try {
    code = channel.wait(kLastWords);
  } catch (const Error& error) {
    lost = error.message();
  }
  const std::string said = last_words(channel.errors());
  std::string message = what;
  if (!said.empty()) message += ": " + said;
  if (code && *code != 0) message += " (exit code " + std::to_string(*code) + ")";
  if (!lost.empty()) message += ": " + lost;
  const bool full = said.find("No space left") != std::string::npos ||
                    said.find("Disk quota exceeded") != std::string::npos;
  if (full) {
    return Error(ErrorCode::exhausted, message)
        .with_hint("make room in the home folder there, or name another place for provider.root");
  }
  return Error(code && *code != 0 ? ErrorCode::failed : ErrorCode::unreachable, message);
}

Bootstrapped bootstrap(Transport& transport, const AgentBinary& binary,
                       const AgentSessionOptions& options, bool send_anyway) {
  const Steady::time_point until = Steady::now() + options.open_limit;
  // No profile can know it, so none can say it.
  const std::string marker = "dtrain-" + random_hex(12);
  Bootstrapped result;
  const std::vector<std::string> argv{"/bin/sh",
                                      "-c",
                                      bootstrap_script(),
                                      "dtrain",
                                      marker,
                                      binary.sha256,
                                      std::to_string(binary.content.size()),
                                      send_anyway ? "1" : "0"};
  result.channel = transport.open(argv);
  const MachineLine there =
      machine_line(read_marker(*result.channel, marker, until), *result.channel);
  if (there.system != "Linux" || there.machine != "x86_64") {
    throw Error(ErrorCode::conflict, "the machine runs " + printable(there.system, false) + " on " +
                                         printable(there.machine, false) +
                                         "; dtrain's agent is built for Linux on x86_64")
        .with_hint("take this host out of the cluster");
  }
  if (there.needs) {
    send_binary(*result.channel, there, binary, marker + " gone", options, result);
    result.sent = true;
  }
  return result;
}

std::unique_ptr<Channel> bring_by_relay(Transport& transport, Spread::Seat& seat,
                                        const RelayedFile& file, const std::string& folder,
                                        const std::string& name, const AgentSessionOptions& options,
                                        const std::function<void(std::size_t)>& watch) {
  const std::string marker = "dtrain-" + random_hex(12);
  std::unique_ptr<Channel> channel =
      transport.open({"/bin/sh", "-c", relay_script(), "dtrain", marker, folder, name});
  const std::string address = read_marker(*channel, marker, Steady::now() + options.open_limit);
  const std::string_view program = relay_program();
  send_all(*channel, std::to_string(program.size()) + "\n", options.send_silence);
  send_all(*channel, program, options.send_silence);
  if (!feed_relay(*channel, seat, file, address, marker + " gone", options.send_silence, watch)) {
    return nullptr;
  }
  return channel;
}

}  // namespace dtrain
