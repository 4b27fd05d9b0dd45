#include "runtime/operation.h"

#include <cstring>

namespace onnxbolt {
namespace {

const OpKind* head = nullptr;  // constant-initialized, hence ready before the kinds register

}  // namespace

OpKind::OpKind(const char* name, MakeOperation make, bool in_rows, bool reads_operands)
    : name(name), make(make), in_rows(in_rows), reads_operands(reads_operands), next(head) {
  head = this;
}

const OpKind& FindKind(const char* name) {
  for (const OpKind* kind = head; kind; kind = kind->next) {
    if (!std::strcmp(kind->name, name)) return *kind;
  }
  throw ort::Error(ort::kNotImplemented, std::string("the library has no op of the kind ") + name);
}

}  // namespace onnxbolt
