#include "launcher/files/sync_wire.hpp"

#include <algorithm>

#include "launcher/core/text.hpp"
#include "launcher/files/blocks.hpp"
#include "launcher/files/coding.hpp"
#include "launcher/wire/fields.hpp"

namespace dtrain {

BOOST_DESCRIBE_STRUCT(SyncNote, (), (path, reason))
BOOST_DESCRIBE_STRUCT(MountOutcome, (),
                      (target, entries, files, bytes, made, touched, removed, sent_paths,
                       removed_paths, left, left_count, changing, left_out))
BOOST_DESCRIBE_STRUCT(SyncOutcome, (), (mounts, wire_bytes, dry_run))

}  // namespace dtrain

namespace dtrain::sync {
namespace {

constexpr std::chrono::seconds kAlive{10};

Error wrong(const std::string& what) {
  return Error(ErrorCode::invalid, "a message of the other side " + what);
}

json error_json(const Error& error) {
  json body = wire::error_to_json(error).at("error");
  body["type"] = "error";
  body["message"] = as_text(error.message());
  body["hint"] = as_text(error.hint());
  return body;
}

// The first of them, as text for JSON.
void show(std::vector<std::string>& texts, std::size_t most) {
  texts.resize(std::min(texts.size(), most));
  for (std::string& text : texts) text = as_text(text);
}

void show(std::vector<SyncNote>& notes, std::size_t most) {
  notes.resize(std::min(notes.size(), most));
  for (SyncNote& note : notes) note = {as_text(note.path), as_text(note.reason)};
}

}  // namespace

std::string as_text(std::string_view bytes) {
  return printable(bytes, false);
}

void refuse_unless_utf8(const fs::path& path) {
  if (is_utf8(path.native())) return;
  throw Error(ErrorCode::invalid, printable_path(path) + " is not UTF-8, as a path must be")
      .with_hint("within a folder names may be of any bytes: sync the folder");
}

Wire::Wire(FramedStream& stream, std::chrono::milliseconds silence)
    : stream_(stream), silence_(silence), alive_([this] {
        std::unique_lock lock(mutex_);
        while (!wake_.wait_for(lock, kAlive, [this] { return over_; })) {
          try {
            // Somebody who sends now is alive without our saying so.
            const std::unique_lock sending(sending_, std::try_to_lock);
            if (sending) stream_.send(FrameKind::text, R"({"type":"alive"})", silence_);
          } catch (const Error&) {
            return;  // who reads or sends next will see it
          }
        }
      }) {}

Wire::~Wire() {
  quiet();
}

void Wire::quiet() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_.notify_all();
  if (alive_.joinable()) alive_.join();
}

void Wire::say(const json& message) {
  const std::lock_guard lock(sending_);
  stream_.send(FrameKind::text, message.dump(-1, ' ', false, json::error_handler_t::replace),
               silence_);
}

void Wire::bytes(std::string_view bytes) {
  const std::lock_guard lock(sending_);
  stream_.send(FrameKind::bytes, bytes, silence_);
}

void Wire::blob(std::string_view bytes) {
  say({{"type", "blob"}, {"size", bytes.size()}});
  Packer packer(1);
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, kBlockSize);
    std::string block(1, kPlainBlock);
    block += part;
    this->bytes(packer.pack(std::move(block)));
    bytes.remove_prefix(part.size());
  }
}

std::string Wire::blob() {
  const std::uint64_t size =
      static_cast<std::uint64_t>(wire::get_int(expect("blob"), "size", 0, kBlobLimit));
  std::string bytes;
  Unpacker unpacker;
  while (bytes.size() < size) {
    FramedStream::Message message = next();
    if (message.kind != FrameKind::bytes) throw wrong("comes in the middle of a list");
    const std::string block = unpacker.unpack(std::move(message.bytes));
    if (block.size() == 1 || block.size() - 1 > size - bytes.size()) {
      throw wrong("is not as long as it was said to be");
    }
    bytes.append(block, 1);
  }
  return bytes;
}

json Wire::parse(const FramedStream::Message& message) {
  if (message.kind != FrameKind::text) throw wrong("is not text");
  json parsed = json::parse(message.bytes, nullptr, false);
  if (parsed.is_discarded() || !parsed.is_object()) throw wrong("is no JSON object");
  return parsed;
}

FramedStream::Message Wire::next() {
  while (true) {
    std::optional<FramedStream::Message> message = stream_.read(silence_);
    if (!message) throw Error(ErrorCode::unreachable, "the other side ended before the sync did");
    // Only short texts can be one of the two that may come at any time.
    if (message->kind == FrameKind::text) {
      if (message->bytes == R"({"type":"alive"})") continue;
      const json parsed = parse(*message);
      if (wire::get_string(parsed, "type") == "error")
        throw PeerError(wire::error_from_body(parsed));
    }
    return std::move(*message);
  }
}

json Wire::expect(const char* type) {
  json message = parse(next());
  if (wire::get_string(message, "type") != type) {
    throw wrong("is \"" + as_text(wire::get_string(message, "type")) + "\" in place of \"" + type +
                "\"");
  }
  return message;
}

void Wire::throw_if_refused() {
  while (stream_.has_input()) {
    const std::optional<FramedStream::Message> message = stream_.read(silence_);
    if (!message) throw Error(ErrorCode::unreachable, "the other side ended before the sync did");
    const json parsed = parse(*message);
    const std::string type = wire::get_string(parsed, "type");
    if (type == "error") throw PeerError(wire::error_from_body(parsed));
    if (type != "alive") throw wrong("comes while nothing is expected");
  }
}

void Wire::until_done() {
  while (true) {
    const auto message = stream_.read(silence_);
    if (!message) return;
    if (message->kind != FrameKind::text) continue;
    const json parsed = json::parse(message->bytes, nullptr, false);
    if (parsed.is_discarded() || !parsed.is_object() || !parsed.contains("type")) continue;
    if (parsed["type"] == "done" || parsed["type"] == "error") return;
  }
}

void Wire::done() {
  quiet();
  say({{"type", "done"}});
}

void Wire::result(const json& message) {
  quiet();
  say(message);
  try {
    until_done();
  } catch (const Error&) {  // it is gone, and all is done
  }
}

void Wire::fail() {
  quiet();
  try {
    throw;
  } catch (const PeerError& error) {
    try {
      say({{"type", "done"}});
    } catch (const Error&) {  // it is gone; what it said is the reason
    }
    throw Error(error);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout) {
      // It may have said why before it went.
      try {
        while (stream_.has_input()) {
          const auto message = stream_.read(silence_);
          if (!message) break;
          if (message->kind != FrameKind::text) continue;
          const json parsed = parse(*message);
          if (wire::get_string(parsed, "type") == "error")
            throw PeerError(wire::error_from_body(parsed));
        }
      } catch (const PeerError& reason) {
        throw Error(reason);
      } catch (const Error&) {
      }
      throw;
    }
    try {
      say(error_json(error));
      until_done();
    } catch (const Error&) {  // nobody is there to be told
    }
    throw;
  } catch (const std::exception& error) {
    const Error defect = as_defect(error);
    try {
      say(error_json(defect));
      until_done();
    } catch (const Error&) {
    }
    throw Error(defect);
  }
}

std::string encode_names(const std::vector<EntryName>& names) {
  ByteWriter out;
  out.number(names.size());
  for (const EntryName& name : names) {
    out.number(name.mount);
    out.number(name.entry);
  }
  return out.take();
}

std::vector<EntryName> decode_names(std::string_view bytes) {
  ByteReader in(bytes, "a list of the other side");
  std::vector<EntryName> names(in.number_up_to(bytes.size()));
  for (EntryName& name : names) {
    name.mount = static_cast<std::uint32_t>(in.number_up_to(UINT32_MAX));
    name.entry = static_cast<std::uint32_t>(in.number_up_to(UINT32_MAX));
  }
  in.expect_end();
  return names;
}

json outcome_to_json(SyncOutcome outcome, std::size_t most) {
  for (MountOutcome& mount : outcome.mounts) {
    mount.target = as_text(mount.target);
    for (auto* texts : {&mount.sent_paths, &mount.removed_paths, &mount.changing}) {
      show(*texts, most);
    }
    for (auto* notes : {&mount.left, &mount.left_out}) show(*notes, most);
  }
  return wire::written(outcome);
}

SyncOutcome outcome_from_json(const json& message) {
  SyncOutcome outcome;
  wire::read(message, outcome);
  return outcome;
}

}  // namespace dtrain::sync
