// The exchange of a cluster's blocks, which divide the keys of the same queries: each has the sums
// of its part of the keys in its shared memory, relative to its part's largest scores.
//
// Sums are added up in the order of the blocks: results are the same bits on every run.
#pragma once
#include "families/attention/warp.h"
#include "runtime/cluster.h"

namespace onnxbolt {
namespace attention {

// Used by all threads of all the cluster's blocks together.
template <class S>
class Parts {
 public:
  using Element = typename S::Element;

  __device__ Parts(const Params& params, const Place& place, char* memory)
      : params_(params),
        rows_(min(params.queries - place.query, S::kQueries)),
        sums_(reinterpret_cast<float*>(memory + S::kQueryBytes)),
        states_(reinterpret_cast<float2*>(sums_ + S::kQueries * S::kSumPitch)),
        tops_(reinterpret_cast<float*>(memory + S::kBytes - S::kTileFlags - S::kTopBytes)) {}

  // True if one of the queries has read excluded keys alone, in all blocks.
  __device__ bool lack_keys(const Warp<S>& warp) const {
    warp.put_tops(tops_ + first_row());
    ArriveAtCluster();
    WaitForCluster();
    bool lacks = false;
    for (int row = threadIdx.x; row < rows_; row += S::kThreads) {
      float top = -INFINITY;
      CUTLASS_PRAGMA_UNROLL
      for (int rank = 0; rank < S::kSplits; ++rank)
        top = fmaxf(top, LoadFromBlock(tops_ + row, rank));
      lacks |= !(top > Params::kExcluded);
    }
    return __syncthreads_or(lacks);
  }

  // Adds up all parts and stores the result, of which query i begins at y(i). The keys and values
  // are not read any more. Each block finishes some units of rows.
  template <class Result>
  __device__ void finish(const Warp<S>& warp, const Result& y) const {
    constexpr int kUnits = S::kValueSize / S::kOfUnit;
    warp.put_sums(sums_ + first_row() * S::kSumPitch, states_ + first_row());
    ArriveAtCluster();
    WaitForCluster();
    for (int item = ClusterRank() * S::kThreads + threadIdx.x; item < rows_ * kUnits;
         item += S::kSplits * S::kThreads) {
      const int row = item / kUnits, begin = item % kUnits * S::kOfUnit;
      const Unit unit = result(row, begin);
      StoreUnit<S>(y(row) + begin, reinterpret_cast<const char*>(&unit), begin, params_.value_size);
    }
    ArriveAtCluster();  // the others may still read this block's sums: it must not end before
    WaitForCluster();
  }

 private:
  using Unit = cutlass::AlignedArray<Element, S::kOfUnit>;

  // The first of the warp's rows.
  __device__ static int first_row() { return threadIdx.x / mma::kWarp * S::kRows; }

  // A unit of a row's result.
  __device__ Unit result(int row, int begin) const {
    float tops[S::kSplits], top = -INFINITY, sum = 0, values[S::kOfUnit] = {};
    CUTLASS_PRAGMA_UNROLL
    for (int rank = 0; rank < S::kSplits; ++rank) {
      tops[rank] = LoadFromBlock(&states_[row].x, rank);
      top = fmaxf(top, tops[rank]);
    }
    const float offset = ScaledTop(top, params_.c);
    CUTLASS_PRAGMA_UNROLL
    for (int rank = 0; rank < S::kSplits; ++rank) {
      const float factor = mma::Exp2(__fmul_rn(tops[rank], params_.c) - offset);
      sum += factor * LoadFromBlock(&states_[row].y, rank);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < S::kOfUnit; i += 4) {
        const float* const from = sums_ + row * S::kSumPitch + begin + i;
        const float4 part = LoadFromBlock(reinterpret_cast<const float4*>(from), rank);
        values[i] += factor * part.x, values[i + 1] += factor * part.y;
        values[i + 2] += factor * part.z, values[i + 3] += factor * part.w;
      }
    }
    const float inverse = sum == 0 ? params_.unread : 1.f / sum;
    Unit unit;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < S::kOfUnit; ++i) unit[i] = Element(values[i] * inverse);
    return unit;
  }

  const Params& params_;
  const int rows_;  // queries of the block
  float* const sums_;
  float2* const states_;
  float* const tops_;
};

}  // namespace attention
}  // namespace onnxbolt
