#include "launcher/files/sync_wire.hpp"

#include "launcher/core/text.hpp"
#include "launcher/files/blocks.hpp"
#include "launcher/files/coding.hpp"

namespace dtrain::sync {
namespace {

constexpr std::chrono::seconds kAlive{10};
constexpr std::size_t kListed = 1000;

Error wrong(const std::string& what) {
  return Error(ErrorCode::invalid, "a message of the other side " + what);
}

const json& member(const json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (!object.is_object() || found == object.end()) {
    throw wrong(std::string("has no \"") + name + "\"");
  }
  return *found;
}

json error_json(const Error& error) {
  return {{"type", "error"},
          {"code", to_string(error.code())},
          {"message", as_text(error.message())},
          {"context", error.context()},
          {"hint", as_text(error.hint())}};
}

PeerError error_from(const json& message) {
  PeerError error(error_code_from(text_in(message, "code")), text_in(message, "message"));
  for (const json& each : list_in(message, "context")) {
    if (each.is_string()) error.while_doing(each.get<std::string>());
  }
  error.with_hint(text_in(message, "hint"));
  return error;
}

json notes_to_json(const std::vector<SyncNote>& notes) {
  json list = json::array();
  for (const SyncNote& note : notes) {
    if (list.size() >= kListed) break;
    list.push_back({{"path", as_text(note.path)}, {"reason", as_text(note.reason)}});
  }
  return list;
}

std::vector<SyncNote> notes_from_json(const json& list) {
  std::vector<SyncNote> notes;
  for (const json& each : list) notes.push_back({text_in(each, "path"), text_in(each, "reason")});
  return notes;
}

json texts_to_json(const std::vector<std::string>& texts) {
  json list = json::array();
  for (const std::string& text : texts) {
    if (list.size() >= kListed) break;
    list.push_back(as_text(text));
  }
  return list;
}

std::vector<std::string> texts_from_json(const json& list) {
  std::vector<std::string> texts;
  for (const json& each : list) {
    if (!each.is_string()) throw wrong("has a list of something else");
    texts.push_back(each.get<std::string>());
  }
  return texts;
}

}  // namespace

std::string as_text(std::string_view bytes) {
  return printable(bytes, false);
}

std::uint64_t number_in(const json& object, const char* name, std::uint64_t limit) {
  const json& value = member(object, name);
  if (!value.is_number_integer() ||
      (!value.is_number_unsigned() && value.get<std::int64_t>() < 0) ||
      value.get<std::uint64_t>() > limit) {
    throw wrong(std::string("has a wrong \"") + name + "\"");
  }
  return value.get<std::uint64_t>();
}

std::string text_in(const json& object, const char* name) {
  const json& value = member(object, name);
  if (!value.is_string()) throw wrong(std::string("has a wrong \"") + name + "\"");
  return value.get<std::string>();
}

bool flag_in(const json& object, const char* name) {
  const json& value = member(object, name);
  if (!value.is_boolean()) throw wrong(std::string("has a wrong \"") + name + "\"");
  return value.get<bool>();
}

const json& list_in(const json& object, const char* name) {
  const json& value = member(object, name);
  if (!value.is_array()) throw wrong(std::string("has a wrong \"") + name + "\"");
  return value;
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
  const std::uint64_t size = number_in(expect("blob"), "size", kBlobLimit);
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
      if (text_in(parsed, "type") == "error") throw error_from(parsed);
    }
    return std::move(*message);
  }
}

json Wire::expect(const char* type) {
  json message = parse(next());
  if (text_in(message, "type") != type) {
    throw wrong("is \"" + as_text(text_in(message, "type")) + "\" in place of \"" + type + "\"");
  }
  return message;
}

void Wire::throw_if_refused() {
  while (stream_.has_input()) {
    const std::optional<FramedStream::Message> message = stream_.read(silence_);
    if (!message) throw Error(ErrorCode::unreachable, "the other side ended before the sync did");
    const json parsed = parse(*message);
    const std::string type = text_in(parsed, "type");
    if (type == "error") throw error_from(parsed);
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
          if (text_in(parsed, "type") == "error") throw error_from(parsed);
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

json outcome_to_json(const SyncOutcome& outcome) {
  json mounts = json::array();
  for (const MountOutcome& mount : outcome.mounts) {
    mounts.push_back({{"target", as_text(mount.target)},
                      {"entries", mount.entries},
                      {"files", mount.files},
                      {"bytes", mount.bytes},
                      {"made", mount.made},
                      {"touched", mount.touched},
                      {"removed", mount.removed},
                      {"sent_paths", texts_to_json(mount.sent_paths)},
                      {"removed_paths", texts_to_json(mount.removed_paths)},
                      {"left", notes_to_json(mount.left)},
                      {"left_count", mount.left_count},
                      {"changing", texts_to_json(mount.changing)},
                      {"left_out", notes_to_json(mount.left_out)}});
  }
  return {{"mounts", std::move(mounts)},
          {"wire_bytes", outcome.wire_bytes},
          {"dry_run", outcome.dry_run}};
}

SyncOutcome outcome_from_json(const json& message) {
  SyncOutcome outcome;
  for (const auto& each : list_in(message, "mounts")) {
    MountOutcome mount;
    mount.target = text_in(each, "target");
    mount.entries = number_in(each, "entries");
    mount.files = number_in(each, "files");
    mount.bytes = number_in(each, "bytes");
    mount.made = number_in(each, "made");
    mount.touched = number_in(each, "touched");
    mount.removed = number_in(each, "removed");
    mount.sent_paths = texts_from_json(list_in(each, "sent_paths"));
    mount.removed_paths = texts_from_json(list_in(each, "removed_paths"));
    mount.left = notes_from_json(list_in(each, "left"));
    mount.left_count = number_in(each, "left_count");
    mount.changing = texts_from_json(list_in(each, "changing"));
    mount.left_out = notes_from_json(list_in(each, "left_out"));
    outcome.mounts.push_back(std::move(mount));
  }
  outcome.wire_bytes = number_in(message, "wire_bytes");
  outcome.dry_run = flag_in(message, "dry_run");
  return outcome;
}

}  // namespace dtrain::sync
