#include "trainer/train/export.hpp"

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "trainer/core/error.hpp"
#include "trainer/core/files.hpp"

namespace dtrain::train {
namespace {

using nlohmann::json;

c10::impl::GenericDict new_dict() {
  return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get());
}

c10::IValue value_of(const json& value) {
  if (value.is_null()) return {};
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const json& item : value) list.push_back(value_of(item));
    return list;
  }
  c10::impl::GenericDict dict = new_dict();
  for (const auto& [name, item] : value.items()) dict.insert(name, value_of(item));
  return dict;
}

c10::IValue value_of(const TensorMap& tensors) {
  c10::impl::GenericDict dict = new_dict();
  for (const auto& [name, tensor] : tensors) {
    // Of its own: a view would bring all of the memory that it looks into.
    dict.insert(name, tensor.detach().to(at::kCPU).clone(at::MemoryFormat::Contiguous));
  }
  return dict;
}

void write(const std::filesystem::path& path, const c10::IValue& value) {
  std::vector<char> pickled;
  std::vector<at::Tensor> tensors;
  // Without the tags of types that TorchScript wants and weights_only refuses.
  torch::jit::Pickler pickler(
      [&](const char* bytes, std::size_t size) {
        pickled.insert(pickled.end(), bytes, bytes + size);
      },
      nullptr, nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  tensors = pickler.tensorData();

  std::filesystem::path temporary = path;
  temporary += ".tmp";
  {
    FileSink sink_file = [&] {
      std::error_code ignored;
      std::filesystem::remove(temporary, ignored);
      return FileSink(temporary);
    }();
    caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, std::size_t size) {
      sink_file.write(std::span(static_cast<const std::byte*>(bytes), size));
      return size;
    });
    writer.writeRecord("data.pkl", pickled.data(), pickled.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      writer.writeRecord("data/" + std::to_string(i), tensors[i].const_data_ptr(),
                         tensors[i].nbytes());
    }
    const std::string order = "little";
    writer.writeRecord("byteorder", order.data(), order.size());
    writer.writeEndOfFile();
    sink_file.finish();
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    throw errno_error("cannot rename " + temporary.string() + " to " + path.string(), errno);
  }
}

}  // namespace

void export_for_torch(const std::filesystem::path& path, const TensorMap& tensors) {
  write(path, value_of(tensors));
}

void export_for_torch(const std::filesystem::path& path,
                      const std::map<std::string, TensorMap>& groups, const json& extra) {
  if (!extra.is_object() && !extra.is_null()) {
    throw Error("export: what stands beside tensors must be an object");
  }
  c10::impl::GenericDict dict = new_dict();
  for (const auto& [name, tensors] : groups) dict.insert(name, value_of(tensors));
  for (const auto& [name, item] : extra.items()) {
    if (groups.contains(name)) throw Error("export: '" + name + "' is there twice");
    dict.insert(name, value_of(item));
  }
  write(path, dict);
}

void export_safetensors(const std::filesystem::path& path, const TensorMap& tensors) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  FileSink sink(temporary);
  write_tensors(sink, tensors, {{"format", "pt"}});
  sink.finish();
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    throw errno_error("cannot rename " + temporary.string() + " to " + path.string(), errno);
  }
}

}  // namespace dtrain::train
