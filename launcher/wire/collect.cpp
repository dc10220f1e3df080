#include "launcher/wire/collect.hpp"

#include <sys/statvfs.h>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/files/content_collection.hpp"
#include "launcher/spec/storage_spec.hpp"

namespace dtrain::wire {

Collected collect_store(const fs::path& content, std::set<std::string> trees,
                        std::set<std::string> blobs, const CollectAsk& ask) {
  Collected answer;
  answer.request = ask.request;
  struct statvfs disk {};
  if (::statvfs(content.parent_path().c_str(), &disk) == 0) {
    answer.disk_total = std::uint64_t{disk.f_blocks} * disk.f_frsize;
    answer.disk_free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  }
  try {
    CollectionOptions options;
    options.trees = std::move(trees);
    options.blobs = std::move(blobs);
    options.gathered = ask.gathered;
    options.dry_run = ask.dry_run;
    if (ask.asked) {  // somebody wants the disk now: nothing stays for later
      options.grace = kAskedContentGrace;
      options.partial_grace = kContentGrace;
    } else {
      options.keep = ask.cache_size.value_or(answer.disk_total / 100 * kContentCacheDiskPercent);
    }
    const Collection found = collect_content(ContentStore(content), options);
    if (found.blobs > 0 || found.blob_bytes > 0) {
      answer.items.push_back({"content", found.blobs, found.blob_bytes});
    }
    if (found.partials > 0) {
      answer.items.push_back({"partial content", found.partials, found.partial_bytes});
    }
    if (!ask.dry_run && !answer.items.empty()) {
      log::info("content that no job needs is gone",
                {{"files", std::to_string(found.blobs + found.partials)},
                 {"bytes", std::to_string(found.blob_bytes + found.partial_bytes)}});
    }
  } catch (const std::exception& error) {
    answer.error = as_error(error);
    log::warn("content cannot be collected", {{"why", error.what()}});
  }
  return answer;
}

}  // namespace dtrain::wire
