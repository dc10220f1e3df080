#include "examples/predict/sheet.hpp"

#include <algorithm>
#include <cstdio>

#include "trainer/core/base64.hpp"
#include "trainer/core/files.hpp"

namespace {

constexpr int kColumns = 5;
constexpr int kPicture = 128;
constexpr int kCell = 148;
constexpr int kRow = 184;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string text_at(int x, int y, const std::string& style, const std::string& text) {
  return "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" " + style + ">" +
         escaped(text) + "</text>\n";
}

}  // namespace

void write_sheet(const std::filesystem::path& path, const std::vector<Prediction>& predictions) {
  const int count = static_cast<int>(predictions.size());
  const int rows = (count + kColumns - 1) / kColumns;
  const int width = std::min(count, kColumns) * kCell + 20;
  const int height = rows * kRow + 20;
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + std::to_string(width) +
                    "\" height=\"" + std::to_string(height) +
                    "\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" "
                    "fill=\"white\"/>\n";
  for (int i = 0; i < count; ++i) {
    const Prediction& p = predictions[static_cast<std::size_t>(i)];
    const int x = 20 + i % kColumns * kCell;
    const int y = 20 + i / kColumns * kRow;
    const auto png = dtrain::train::encode_png(p.picture.view());
    svg += "<image x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" width=\"" +
           std::to_string(kPicture) + "\" height=\"" + std::to_string(kPicture) +
           "\" style=\"image-rendering:pixelated\" href=\"data:image/png;base64," +
           dtrain::train::to_base64(png) + "\"/>\n";
    char percent[16];
    std::snprintf(percent, sizeof percent, " %.0f %%", p.probability * 100);
    svg +=
        text_at(x, y + kPicture + 16, "font-size=\"14\" font-weight=\"bold\"", p.label + percent);
    svg +=
        text_at(x, y + kPicture + 32, "font-size=\"10\" fill=\"#555\"", p.file.filename().string());
  }
  dtrain::train::write_atomically(path, svg + "</svg>\n");
}
