// The memory of a node's tensors for one launch: ORT's own, or copies of tensors that kernels
// cannot access.
#pragma once
#include <deque>
#include <vector>

#include "runtime/elements.h"
#include "runtime/ort_objects.h"

namespace onnxbolt {

// Enqueues a copy on ORT's stream.
void CopyTensor(const OrtKernelContext* context, void* to, const void* from, int64_t bytes);

// Scratch memory tagged with ORT's stream, so that a concurrent run on another stream does not get
// it too early.
class Scratch {
 public:
  Scratch(const OrtKernelContext* context, OrtAllocator* allocator, size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return data_; }

 private:
  OrtAllocator* allocator_;
  void* data_ = nullptr;
};

// Kernels access 16 bytes at once. Memory that ORT allocates is aligned to that; memory that a user
// has bound to an input or output need not be, and is read and written through scratch memory.
class Buffers {
 public:
  Buffers(OrtKernelContext* context, OrtAllocator* allocator)
      : context_(context), allocator_(allocator) {}

  const OrtValue* Input(size_t index) const;  // throws if it is missing
  const void* Read(const OrtValue* value, int type);
  void* Write(size_t output, const ort::Shape& shape, int type);
  void Copy(void* to, const void* from, int64_t bytes) const {
    CopyTensor(context_, to, from, bytes);
  }
  void Finish() const;  // called after the kernels: copies outputs that were written elsewhere to
                        // their places

 private:
  struct StandIn {
    void* original;
    void* copy;
    int64_t bytes;
    bool written;
  };

  void* StandInFor(void* original, int64_t bytes, bool written);

  OrtKernelContext* context_;
  OrtAllocator* allocator_;
  std::deque<Scratch> scratch_;  // a deque: its elements are not moved when one is added
  std::vector<StandIn> stand_ins_;
};

}  // namespace onnxbolt
