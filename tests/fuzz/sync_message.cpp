// What the other side of a sync sends: trees, names, blocks and archives. What is read as a tree is
// written as the same bytes.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/files/archive.hpp"
#include "launcher/files/blocks.hpp"
#include "launcher/files/ignore.hpp"
#include "launcher/files/record.hpp"
#include "launcher/files/sync_wire.hpp"
#include "launcher/files/tree.hpp"

namespace {

using namespace dtrain;

template <typename Read>
void try_to(Read read) {
  try {
    read();
  } catch (const Error&) {
  }
}

void archive_of(std::string_view bytes) {
  bool given = false;
  ArchiveReader reader([&]() -> std::string_view {
    if (given) return {};
    given = true;
    return bytes;
  });
  while (const auto file = reader.next()) {
    std::uint64_t end = 0;
    while (const auto piece = reader.piece()) {
      if (piece->offset < end || piece->offset + piece->bytes.size() > file->size) std::abort();
      end = piece->offset + piece->bytes.size();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 't':
      try_to([&] {
        if (encode_tree(decode_tree(bytes)) != bytes) std::abort();
      });
      break;
    case 'n':
      try_to([&] { sync::decode_names(bytes); });
      break;
    case 'j':
      try_to([&] {
        const sync::Journal journal = sync::decode_journal(bytes);
        if (sync::decode_journal(sync::encode_journal(journal)) != journal) std::abort();
      });
      break;
    case 'b':
      try_to([&] {
        Unpacker unpacker;
        unpacker.unpack(std::string(bytes));
      });
      break;
    case 'a':
      try_to([&] { archive_of(bytes); });
      break;
    case 'i': {
      const std::size_t line = bytes.find('\n');
      const IgnoreList list(bytes.substr(0, line), "");
      list.judge(line == std::string_view::npos ? "a/b" : bytes.substr(line + 1), false);
      break;
    }
    case 'o':
      try_to([&] {
        const auto json = sync::json::parse(bytes, nullptr, false);
        if (!json.is_discarded()) sync::outcome_from_json(json);
      });
      break;
    default:
      break;
  }
  return 0;
}
