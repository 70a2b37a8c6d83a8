#include "launch/source.h"

#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>

#include "launch/decimal.h"

namespace tessl {
namespace {

namespace fs = std::filesystem;

std::string_view trim_front(std::string_view text) {
  const auto start = text.find_first_not_of(" \t");
  return start == std::string_view::npos ? std::string_view{} : text.substr(start);
}

constexpr std::string_view folder = "kernels/"; // as includes write it, whatever the folder is called

// What follows `word` when `text` starts with it and it ends there.
std::optional<std::string_view> after_word(std::string_view text, std::string_view word) {
  if (!text.starts_with(word)) {
    return std::nullopt;
  }
  const auto rest = text.substr(word.size());
  const bool ends = rest.empty() || rest[0] == ' ' || rest[0] == '\t' || rest[0] == '"' || rest[0] == '<';
  return ends ? std::optional(trim_front(rest)) : std::nullopt;
}

class Flattener {
 public:
  explicit Flattener(const fs::path& kernels) : kernels_(kernels) {
  }

  // `name` starts with kernels/; `includer` is the place that mentions it, or empty for the family itself.
  void append(const std::string& name, const std::string& includer) {
    if (!included_.insert(name).second) {
      return;
    }
    const auto path = kernels_ / name.substr(folder.size());
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      throw std::runtime_error(
          "[mlx_tessl] there is no shader file " + path.string() + (includer.empty() ? "" : ", included by " + includer)
      );
    }
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    mark_line(1, name);
    append_lines(name, content);
  }

  std::string text;

 private:
  void append_lines(const std::string& name, std::string_view content) {
    size_t number = 0;
    int conditions = 0;
    bool in_comment = false;
    while (!content.empty()) {
      const auto end = content.find('\n');
      const auto line = content.substr(0, end);
      content = end == std::string_view::npos ? std::string_view{} : content.substr(end + 1);
      const auto place = name + ":" + decimal(++number);
      require_ascii(line, place);

      const bool may_direct = !in_comment;
      in_comment = comment_continues(line, in_comment);
      const auto directive = may_direct ? directive_of(line) : std::string_view{};
      if (directive.starts_with("if")) {
        ++conditions;
      } else if (directive.starts_with("endif")) {
        --conditions;
      }

      if (const auto included = quoted_include(directive, place)) {
        if (!included->starts_with(folder)) {
          refuse(place, "includes \"" + *included + "\", which does not start with kernels/");
        }
        if (conditions > 0) {
          refuse(place, "includes \"" + *included + "\" under a condition");
        }
        append(*included, place);
        mark_line(number + 1, name);
      } else if (is_pragma_once(directive)) {
        text += '\n';
      } else {
        text.append(line);
        text += '\n';
      }
    }
  }

  void mark_line(size_t number, const std::string& name) {
    text += "#line " + decimal(number) + " \"" + name + "\"\n";
  }

  // The text behind `#`, or empty.
  static std::string_view directive_of(std::string_view line) {
    const auto text = trim_front(line);
    return text.starts_with('#') ? trim_front(text.substr(1)) : std::string_view{};
  }

  static bool is_pragma_once(std::string_view directive) {
    const auto pragma = after_word(directive, "pragma");
    return pragma && pragma->starts_with("once");
  }

  static std::optional<std::string> quoted_include(std::string_view directive, const std::string& place) {
    const auto target = after_word(directive, "include");
    if (!target || target->starts_with('<')) {
      return std::nullopt;
    }
    const auto close = target->find('"', 1);
    if (!target->starts_with('"') || close == std::string_view::npos) {
      refuse(place, "has an #include that names no file");
    }
    return std::string(target->substr(1, close - 1));
  }

  static bool comment_continues(std::string_view line, bool in_comment) {
    for (size_t i = 0; i + 1 < line.size(); ++i) {
      const auto pair = line.substr(i, 2);
      if (in_comment && pair == "*/") {
        in_comment = false;
        ++i;
      } else if (!in_comment && pair == "//") {
        return false;
      } else if (!in_comment && pair == "/*") {
        in_comment = true;
        ++i;
      }
    }
    return in_comment;
  }

  static void require_ascii(std::string_view line, const std::string& place) {
    for (size_t i = 0; i < line.size(); ++i) {
      if (static_cast<unsigned char>(line[i]) > 0x7f) {
        throw std::runtime_error("[mlx_tessl] " + place + ":" + decimal(i + 1) + " holds a byte outside ASCII");
      }
    }
  }

  [[noreturn]] static void refuse(const std::string& place, const std::string& why) {
    throw std::runtime_error("[mlx_tessl] " + place + " " + why);
  }

  const fs::path& kernels_;
  std::set<std::string> included_;
};

} // namespace

ShaderSource flatten_shader(const std::filesystem::path& kernels, std::string_view family) {
  Flattener flattener(kernels);
  flattener.append(std::string(folder) + std::string(family) + ".metal", "");
  const auto hash = content_hash(flattener.text);
  return {std::move(flattener.text), hash};
}

uint64_t content_hash(std::string_view content) {
  uint64_t hash = 0xcbf29ce484222325u; // offset basis and prime of 64-bit FNV-1a
  for (const unsigned char byte : content) {
    hash = (hash ^ byte) * 0x100000001b3u;
  }
  return hash;
}

std::string hex(uint64_t hash) {
  std::string digits(16, '0');
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit, hash >>= 4) {
    *digit = "0123456789abcdef"[hash & 15];
  }
  return digits;
}

} // namespace tessl
