#include "launcher/files/record.hpp"

#include <algorithm>

#include "launcher/files/coding.hpp"
#include "launcher/files/file_identity.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain::sync {
namespace {

constexpr std::string_view kRecordMagic = "dtrain-record-1\n";
constexpr std::string_view kJournalMagic = "dtrain-journal-1\n";
constexpr std::size_t kPath = 8192;

void write(ByteWriter& out, const Record& record) {
  out.raw(kRecordMagic);
  out.text(record.target);
  out.number(record.single ? 1 : 0);
  out.text(record.boot);
  out.text(record.tree);
  out.number(record.made.size());
  for (const std::string& folder : record.made) out.text(folder);
  out.number(record.entries.size());
  for (const Written& entry : record.entries) {
    out.text(entry.path);
    out.number(static_cast<std::uint64_t>(entry.kind));
    out.number(entry.mode);
    out.number(entry.size);
    out.signed_number(entry.mtime_ns);
    out.signed_number(entry.disk_mtime_ns);
    out.text(entry.sha256);
    out.text(entry.target);
  }
}

Record read_record(ByteReader& in) {
  if (in.raw(kRecordMagic.size()) != kRecordMagic) in.damaged("it is of another version");
  Record record;
  record.target = in.text(kPath);
  record.single = in.number_up_to(1) == 1;
  record.boot = in.text(64);
  record.tree = in.text(64);
  for (std::uint64_t left = in.number_up_to(1000); left > 0; --left) {
    record.made.emplace_back(in.text(kPath));
  }
  for (std::uint64_t left = in.number(); left > 0; --left) {
    Written entry;
    entry.path = in.text(kPath);
    entry.kind = static_cast<EntryKind>(in.number_up_to(2));
    entry.mode = static_cast<std::uint32_t>(in.number_up_to(0777));
    entry.size = in.number();
    entry.mtime_ns = in.signed_number();
    entry.disk_mtime_ns = in.signed_number();
    entry.sha256 = in.text(64);
    if (!entry.sha256.empty() && !is_sha256(entry.sha256)) in.damaged("a sum is none");
    entry.target = in.text(kPath);
    record.entries.push_back(std::move(entry));
  }
  return record;
}

void write(ByteWriter& out, const Expect& expect) {
  out.number(static_cast<std::uint64_t>(expect.what));
  out.number(expect.size);
  out.signed_number(expect.mtime_ns);
  out.text(expect.target);
}

Expect read_expect(ByteReader& in) {
  Expect expect;
  expect.what = static_cast<Expect::What>(in.number_up_to(3));
  expect.size = in.number();
  expect.mtime_ns = in.signed_number();
  expect.target = in.text(kPath);
  return expect;
}

}  // namespace

std::string encode_record(const Record& record) {
  ByteWriter out;
  write(out, record);
  return out.take();
}

Record decode_record(std::string_view bytes) {
  ByteReader in(bytes, "the record of a sync");
  Record record = read_record(in);
  in.expect_end();
  return record;
}

Expect expect_of(const struct stat& status) {
  Expect expect;
  if (S_ISREG(status.st_mode)) {
    expect.what = Expect::What::file;
    expect.size = static_cast<std::uint64_t>(status.st_size);
    expect.mtime_ns = identity_of(status).mtime_ns;
  } else if (S_ISLNK(status.st_mode)) {
    expect.what = Expect::What::link;
  } else if (S_ISDIR(status.st_mode)) {
    expect.what = Expect::What::folder;
  }
  return expect;
}

std::string encode_journal(const Journal& journal) {
  ByteWriter out;
  out.raw(kJournalMagic);
  out.number(journal.operations.size());
  for (const Operation& operation : journal.operations) {
    out.number(static_cast<std::uint64_t>(operation.kind));
    out.text(operation.path);
    out.number(operation.number);
    write(out, operation.expect);
    out.number(operation.mode);
    out.signed_number(operation.mtime_ns);
    out.text(operation.other);
  }
  write(out, journal.after);
  return out.take();
}

Journal decode_journal(std::string_view bytes) {
  ByteReader in(bytes, "the journal of a sync");
  if (in.raw(kJournalMagic.size()) != kJournalMagic) in.damaged("it is of another version");
  Journal journal;
  for (std::uint64_t left = in.number(); left > 0; --left) {
    Operation operation;
    operation.kind = static_cast<Operation::Kind>(in.number_up_to(6));
    operation.path = in.text(kPath);
    operation.number = in.number();
    operation.expect = read_expect(in);
    operation.mode = static_cast<std::uint32_t>(in.number_up_to(0777));
    operation.mtime_ns = in.signed_number();
    operation.other = in.text(kPath);
    journal.operations.push_back(std::move(operation));
  }
  journal.after = read_record(in);
  in.expect_end();
  return journal;
}

}  // namespace dtrain::sync
